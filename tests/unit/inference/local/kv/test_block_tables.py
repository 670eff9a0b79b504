"""The blocks of each row: shared or its own, kept for later rows or free, each of them once."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.kv.block_tables import BlockTables, blocks_for
from inference.local.kv.shared_prefixes import extend_keys

CPU = torch.device("cpu")
SIZE = 4
NOTHING: dict[int, list[int]] = {}


class Contents:
    """What each block holds as a cache would hold it: the tokens of a row up to there, or None for zeros."""

    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables
        self.of: list[tuple[int, ...] | None] = [None] * tables.blocks
        self.written: list[tuple[int, ...]] = []  # the tokens of each row

    def change(self, changes) -> None:
        moved = [self.of[block] for block in changes.sources]
        for block, content in zip(changes.targets, moved, strict=True):
            self.of[block] = content
        for block in changes.zeroed:
            self.of[block] = None

    def write(self, row: int, tokens: tuple[int, ...], start: int) -> None:
        """Writes a row's tokens from `start` on, as a prefill or a step does; no other row has these blocks."""
        readers = Counter(block for blocks in self.tables.rows for block in blocks)
        for at in range(start // SIZE, blocks_for(len(tokens), SIZE)):
            block = self.tables.rows[row][at]
            assert readers[block] == 1
            assert block not in self.tables.prefixes
            assert start % SIZE or self.of[block] is None
            self.of[block] = tokens[: (at + 1) * SIZE]


def keys_of(tokens: tuple[int, ...], salt: str = "") -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, tokens, salt, SIZE)
    return keys


def check(held: Contents) -> None:
    """No block is lost, none has two owners, no content changed but by its owner, and free blocks are zero."""
    tables = held.tables
    in_rows = Counter(block for row in tables.rows for block in row)
    assert dict(in_rows) == tables._readers
    assert tables.taken + len(tables._unread) == tables.blocks
    assert sorted([*in_rows, *tables._unread]) == list(range(tables.blocks))
    assert tables._unread == sorted(tables._unread)
    assert tables._free == [block for block in tables._unread if block not in tables.prefixes]
    assert tables.prefixes.unread == len(tables._unread) - len(tables._free)
    assert all(held.of[block] is None for block in tables._free)
    assert all(count == 1 or block in tables.prefixes for block, count in in_rows.items())
    for row, tokens in enumerate(held.written):
        assert [held.of[block] for block in tables.rows[row][: blocks_for(len(tokens), SIZE)]] == [
            tokens[: at + SIZE] for at in range(0, len(tokens), SIZE)
        ]
    for block in range(tables.blocks):
        content = held.of[block]
        if block in tables.prefixes and content is not None:
            assert tables.prefixes.find(keys_of(content))[-1] == block


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)
STEP = st.one_of(
    st.tuples(st.just("join"), st.lists(TOKENS, min_size=1, max_size=3)),
    st.tuples(st.just("join together"), st.lists(TOKENS, min_size=2, max_size=3)),
    st.tuples(st.sampled_from(["token", "leave", "leave last"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["close gaps", "clear"]), st.booleans()),
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(steps=st.lists(STEP, max_size=25), blocks=st.sampled_from([6, 12, 30]))
def test_no_block_is_lost_none_has_two_owners_and_nobody_writes_what_is_shared(steps, blocks):
    tables = BlockTables(blocks, SIZE)
    held = Contents(tables)
    for kind, argument in steps:
        rows, before = held.written, [list(row) for row in tables.rows]
        if kind.startswith("join"):
            lengths = [*map(len, rows), *map(len, argument)]
            numbers = range(len(rows), len(lengths))
            found = {n: tables.prefixes.find(keys_of(tokens[:-1])) for n, tokens in zip(numbers, argument, strict=True)}
            changes = tables.grow(lengths, found)
            needed = sum(blocks_for(length, SIZE) for length in lengths)
            if changes is None:
                assert tables.rows == before
                assert needed > blocks  # what is cached refuses nobody
                continue
            held.change(changes)
            for row, tokens in zip(numbers, argument, strict=True):
                if kind == "join together":  # a later one shares what an earlier one has just computed
                    found[row] = tables.prefixes.find(keys_of(tokens[:-1]))
                    held.change(tables.grow(lengths, {row: found[row]}))
                held.write(row, tokens, SIZE * len(found[row]))
                rows.append(tokens)
                tables.prefixes.register(tables.rows[row], keys_of(tokens))
        elif kind == "token" and rows:
            row = argument % len(rows)
            longer = (*rows[row], 7)
            changes = tables.grow([len(longer if n == row else tokens) for n, tokens in enumerate(rows)], NOTHING)
            if changes is not None:
                held.change(changes)
                held.write(row, longer, len(rows[row]))
                rows[row] = longer
        elif kind.startswith("leave") and rows:
            row = -1 if kind == "leave last" else argument % len(rows)
            tables.prefixes.register(tables.rows[row], keys_of(rows[row]))
            held.change(tables.clear(row))
            tables.rows[row], rows[row] = tables.rows[-1], rows[-1]
            tables.rows.pop()
            rows.pop()
        elif kind == "close gaps":
            held.change(tables.close_gaps())
            last = max((max(row) for row in tables.rows if row), default=-1)
            assert 2 * (last + 1) <= 3 * tables.taken
        elif kind == "clear":
            held.change(tables.clear_all(keep_prefixes=argument))
            rows.clear()
            assert tables.taken == 0
            assert argument or all(content is None for content in held.of)
        check(held)


def served(tables, *prompts):
    """Serves prompts one after the other, whose complete blocks are kept."""
    for tokens in prompts:
        row = len(tables.rows)
        tables.grow([0] * row + [len(tokens)], {row: tables.prefixes.find(keys_of(tokens))})
        tables.prefixes.register(tables.rows[row], keys_of(tokens))
        tables.clear(row)


def test_the_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning():
    tables = BlockTables(blocks=6, block_tokens=4)
    old, new = (1,) * 8, (2,) * 12
    served(tables, old, new, old)
    tables.grow([8], NOTHING)  # one block is free
    assert [len(tables.prefixes.find(keys_of(tokens))) for tokens in (old, new)] == [2, 2]
    tables.grow([16], NOTHING)
    assert [len(tables.prefixes.find(keys_of(tokens))) for tokens in (old, new)] == [2, 0]
    assert tables.grow([24], NOTHING) is not None
    assert tables.grow([28], NOTHING) is None


def test_rows_that_share_a_prefix_take_its_memory_once():
    tables = BlockTables(blocks=6, block_tokens=4)
    tokens = (1,) * 16
    tables.grow([16], NOTHING)
    tables.prefixes.register(tables.rows[0], keys_of(tokens))
    shared = tables.prefixes.find(keys_of(tokens))
    assert tables.grow([16, 17, 17], {1: shared, 2: shared}) is not None
    assert tables.taken == 6
    assert tables.needed_tokens([16, 17, 17]) == 24
    assert tables.shared_tokens == 32
    tables.clear(0)
    assert tables.taken == 6
    assert tables.shared_tokens == 16
