"""Layers with a window hold the newest tokens of a row, and read those that it attends to, whatever happens to rows."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv.attention_windows import Window
from inference.local.kv.kv_budget import KvLayout, LayerShape
from inference.local.kv.kv_cache import BudgetExceeded, KvCache

WINDOW = Window(6)
WINDOWS = {"all": None, "window": WINDOW, "chunks": Window(5, in_chunks=True), "wide": Window(9)}
ALIKE, MIXED, TWO_WINDOWS = ("window", "window"), ("window", "all", "chunks", "window"), ("wide", "window")
TOKENS, SIZE = 90, 4  # of the budget, if each were held by all layers; of a block


def layout_of(kinds):
    shapes = tuple(LayerShape(1 + number % 2, 2, 3) for number in range(len(kinds)))
    return KvLayout(shapes, torch.float32, torch.device("cpu"), tuple(kinds), {kind: WINDOWS[kind] for kind in kinds})


def value(number, position):
    """The value of every key and value of a token."""
    return 1000 * number + position


class Rows:
    """The rows of a cache, each with its number and how many tokens it has; what they read is checked at each step."""

    def __init__(self, kinds, in_blocks):
        self.layout = layout_of(kinds)
        self.kv = KvCache(self.layout, TOKENS * self.layout.token_bytes, block_tokens=SIZE, in_blocks=in_blocks)
        self.rows, self.parked, self.joined = [], [], 0

    @property
    def lengths(self):
        return [length for _, length in self.rows]

    def join(self, length):
        self.reserve([*self.lengths, length])
        self.kv.prepare_prefill([len(self.rows)], [length])
        self.joined += 1
        self.rows.append((self.joined, length))
        self.write([[value(self.joined, at) for at in range(length)]])

    def step(self, count):
        for _ in range(count if self.rows else 0):
            slots_at, positions = self.kv.arrangement.slots_at, self.lengths
            before = slots_at([length - 1 for length in self.lengths])
            moved = self.reserve([length + 1 for length in self.lengths])
            slots = self.kv.arrangement.slots_at(positions)
            assert moved or all(torch.equal(slots[of], before[of] + 1) for of in slots)
            width = self.kv.prepare_decode(slots, positions, max(positions) + 1)
            read = self.write([[value(*row)] for row in self.rows])
            at = torch.tensor(positions)[:, None]
            without = (torch.arange(width) > at)[:, None, None]
            masks = self.kv.attention_mask(torch.zeros(without.shape).masked_fill(without, -1), at)
            for layer, kind in enumerate(self.layout.kinds):
                mask = masks[kind] if isinstance(masks, dict) else masks
                assert mask is not None
                for row, (number, length) in enumerate(self.rows):
                    attended = range(self.layout.first_attended(layer, length), length + 1)
                    for side in read[layer]:
                        assert self.seen(side, row, mask[row, 0, 0] == 0) == {value(number, p) for p in attended}
            self.rows = [(number, length + 1) for number, length in self.rows]

    def leave(self, row):
        if self.rows:
            row, last = row % len(self.rows), self.rows.pop()
            self.kv.remove_row(row, len(self.rows), last[1])
            self.rows[row : row + 1] = [last] if row < len(self.rows) else []

    def park(self, row):
        if self.rows:
            row %= len(self.rows)
            self.parked.append((*self.rows[row], self.kv.row_copy(row, self.lengths[row])))
            self.leave(row)

    def come_back(self, _):
        if self.parked:
            number, length, host = self.parked[-1]
            self.reserve([*self.lengths, length])
            self.kv.write_row(len(self.rows), length, host)
            self.rows.append((number, length))
            self.parked.pop()

    def close_gaps(self, _):
        self.kv.close_gaps()

    def reserve(self, lengths):
        moved = self.kv.reserve(lengths, self.lengths)
        kv, columns = self.kv, self.kv.arrangement.columns
        most = [window.tokens if (window := WINDOWS[kind]) else columns for kind in self.layout.kinds]
        each = [4 * shape.heads * (shape.key_dim + shape.value_dim) for shape in self.layout.shapes]
        if kv.in_blocks:
            tokens = [SIZE * -(-min(length, SIZE * -(-most[0] // SIZE)) // SIZE) for length in lengths]
            assert kv.nbytes == sum(each) * sum(tokens) == kv.needed_bytes(lengths)
        else:
            held = [of * min(columns, held) for of, held in zip(each, most, strict=True)]
            assert kv.nbytes == kv.arrangement.blocks * sum(held)
        assert kv.needed_bytes(lengths) <= kv.nbytes <= kv.budget_bytes
        assert sum(side.nbytes for side, _ in kv._tensors()) <= kv.budget_bytes
        return moved

    def write(self, values):
        """Returns what each layer attends to."""
        states = torch.tensor(values, dtype=torch.float32)[:, None, :, None]
        shapes = enumerate(self.layout.shapes)
        sides = [(n, states.expand(-1, of.heads, -1, 2), states.expand(-1, of.heads, -1, 3)) for n, of in shapes]
        return [self.kv.update(keys, values, n) for n, keys, values in sides]

    def seen(self, side, row, visible):
        """The values that a row sees in the keys or the values of a layer."""
        if self.kv.in_blocks:
            held = side[self.kv.arrangement.blocks_of(row)].transpose(0, 1).flatten(1, 2)
        else:
            held = side[row]
        held = held[:, visible[: held.shape[1]].nonzero()[:, 0]]
        assert held.eq(held[:1, :, :1]).all()
        return {int(one) for one in held[0, :, 0]}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "step", "step", "leave", "park", "come_back", "close_gaps"]), st.integers(1, 24)
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.parametrize(
    ("kinds", "in_blocks"), [(ALIKE, True), (ALIKE, False), (MIXED, False), (TWO_WINDOWS, False), (("all",), True)]
)
@settings(deadline=None, derandomize=True, max_examples=25)
@given(steps=STEPS)
def test_each_row_reads_exactly_what_its_newest_token_attends_to(kinds, in_blocks, steps):
    rows = Rows(kinds, in_blocks)
    rows.join(3)
    for act, number in steps:
        with suppress(BudgetExceeded):
            getattr(rows, act)(number)
    with suppress(BudgetExceeded):
        rows.step(1)


@pytest.mark.parametrize(("kinds", "in_blocks", "before", "now"), [(ALIKE, True, 3, 11), (MIXED, False, 3, 7)])
def test_more_rows_fit_whose_tokens_are_mostly_behind_a_window(kinds, in_blocks, before, now):
    rows, length = Rows(kinds, in_blocks), 4 * WINDOW.tokens
    assert TOKENS // length == before
    with suppress(BudgetExceeded):
        while True:
            rows.join(length)
    rows.step(1)
    assert len(rows.rows) == now


def test_rows_of_any_length_fit_if_all_layers_have_a_window():
    rows = Rows(ALIKE, in_blocks=True)
    rows.join(10 * TOKENS)
    rows.step(2 * SIZE)
    assert rows.kv.nbytes == 2 * SIZE * rows.layout.token_bytes
