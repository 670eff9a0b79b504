"""The kernels over pages in Triton's interpreter: `make test-engines` installs it and sets TRITON_INTERPRET."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.forward import page_kernels
from inference.local.forward.page_kernels import TritonKernels
from inference.local.kv.block_tables import blocks_for
from inference.local.kv.pages import Pages, tiles_of
from inference.local.kv.query_groups import token_rows
from tests.unit.inference.local.forward.torch_page_kernels import TorchKernels
from tests.unit.inference.tiny_models import AMPLE, drain, known

DIM, PAGES, NAN = 8, 24, float("nan")


class Case:
    """Rows in pages of a cache whose unused memory is NaN, and the states of tokens that a pass computes.

    Row i has positions[i] tokens, and counts[i] new ones, in the order of a joiner's part: the last one is first.
    """

    def __init__(self, positions, size, heads, of_key_head, seed, counts=None, dim=DIM):
        counts = counts or [1] * len(positions)
        random = torch.Generator().manual_seed(seed)
        order = iter(torch.randperm(PAGES, generator=random).tolist())
        ends = [max(position, 0) + count for position, count in zip(positions, counts, strict=True)]
        rows = [[next(order) for _ in range(blocks_for(end, size))] for end in ends]
        numbered = token_rows(counts)
        table = torch.full((len(numbered), PAGES), 10**6, dtype=torch.int32)
        for token, (row, _) in enumerate(numbered):
            table[token, : len(rows[row])] = torch.tensor(rows[row])
        tiles = torch.tensor(tiles_of(counts), dtype=torch.int32) if max(counts) > 1 else None
        self.pages = Pages(table, torch.full((len(numbered),), size, dtype=torch.int32), heads, tiles)
        self.positions = torch.tensor([positions[row] + (place or counts[row]) - 1 for row, place in numbered])
        self.keys, self.values = (torch.full((PAGES * heads * size, dim), NAN) for _ in range(2))
        for row, pages in enumerate(rows):
            for at in range(positions[row]):
                slots = (pages[at // size] * heads + torch.arange(heads)) * size + at % size
                self.keys[slots] = torch.randn(heads, dim, generator=random)
                self.values[slots] = torch.randn(heads, dim, generator=random)
        self.states = torch.randn(len(numbered), heads * (of_key_head + 2), dim, generator=random)
        self.cos, self.sin = (torch.randn(len(numbered), 1, dim, generator=random) for _ in range(2))

    def computed(self, kernels):
        keys, values = self.keys.clone(), self.values.clone()
        queries = kernels.write(self.states, self.cos, self.sin, keys, values, self.pages, self.positions)
        attended = kernels.attend(queries, keys, values, self.pages, self.positions)
        return keys, values, attended


@given(
    st.lists(st.integers(-1, 20), min_size=1, max_size=4),
    st.sampled_from([1, 3, 8, 32]),
    st.integers(1, 2),
    st.sampled_from([1, 3]),
    st.integers(0, 99),
    st.sampled_from([1, 8, 64]),
)
@settings(max_examples=12, deadline=None)
def test_kernels_write_and_read_what_torch_does(positions, size, heads, of_key_head, seed, programs):
    if sum(max(position, 0) // size + 1 for position in positions) > PAGES:
        positions = [min(position, 3) for position in positions]
    case = Case(positions, size, heads, of_key_head, seed)
    with pytest.MonkeyPatch.context() as patched:  # several parts of a row, or one
        patched.setattr(page_kernels, "PROGRAMS", programs)
        patched.setattr(page_kernels, "TILE", 16)
        ours = case.computed(TritonKernels())
    for one, expected in zip(ours, case.computed(TorchKernels()), strict=True):
        torch.testing.assert_close(one, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=3),
    st.sampled_from([3, 8, 32]),
    st.sampled_from([(1, 1), (2, 3), (1, 8), (1, 40)]),
    st.integers(0, 99),
    st.sampled_from([1, 64]),
)
@settings(max_examples=12, deadline=None)
def test_tokens_of_joining_rows_attend_in_tiles_as_they_do_alone(rows, size, shape, seed, programs):
    (positions, counts), (heads, of_key_head) = zip(*rows, strict=True), shape
    size = 32 if sum(blocks_for(sum(row), size) for row in rows) > PAGES else size
    case = Case(positions, size, heads, of_key_head, seed, counts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_kernels, "PROGRAMS", programs)
        patched.setattr(page_kernels, "TILE", 16)
        ours = case.computed(TritonKernels())
    for one, expected in zip(ours, case.computed(TorchKernels()), strict=True):
        torch.testing.assert_close(one, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("of_key_head", [1, 4])
def test_heads_of_each_size_that_models_have_are_computed(dim, of_key_head):
    case = Case([9, 0], 8, 2, of_key_head, seed=dim, counts=[1, 20], dim=dim)
    for one, expected in zip(case.computed(TritonKernels()), case.computed(TorchKernels()), strict=True):
        torch.testing.assert_close(one, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


def test_a_row_of_one_token_beside_one_of_four_thousand_and_one_that_is_masked():
    kernels, longest = TritonKernels(), 4000
    case = Case([0, longest, -1], size=256, heads=1, of_key_head=2, seed=3)
    for one, expected in zip(case.computed(kernels), case.computed(TorchKernels()), strict=True):
        torch.testing.assert_close(one, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert not case.computed(kernels)[2][2].any()  # a token without a position gets 0


def test_pages_beyond_2_to_the_31_values_are_written_and_read():
    """The cache is memory that is never touched but at its end, so that its size is on paper alone."""
    size, heads, positions = 32, 1, torch.tensor([40])
    pages = -(-(2**31 + 2**20) // (heads * size * DIM))
    table = torch.tensor([[pages - 2, pages - 1]], dtype=torch.int32)
    far = Pages(table, torch.tensor([size], dtype=torch.int32), heads)
    near = Pages(table - (pages - 2), far.sizes, heads)
    keys, values = (torch.empty(pages * heads * size, DIM, dtype=torch.bfloat16) for _ in range(2))
    random = torch.Generator().manual_seed(1)
    last = slice((pages - 2) * heads * size, None)
    for memory in (keys, values):
        memory[last] = torch.randn(2 * heads * size, DIM, generator=random).bfloat16()
    states = torch.randn(1, 4, DIM, generator=random).bfloat16()
    cos, sin = (torch.randn(1, 1, DIM, generator=random).bfloat16() for _ in range(2))
    expected_keys, expected_values = keys[last].clone(), values[last].clone()
    kernels = TritonKernels()
    expected = kernels.write(states, cos, sin, expected_keys, expected_values, near, positions)
    queries = kernels.write(states, cos, sin, keys, values, far, positions)
    assert torch.equal(queries, expected)
    assert torch.equal(keys[last], expected_keys)
    assert torch.equal(values[last], expected_values)
    attended = kernels.attend(queries, keys, values, far, positions)
    assert torch.equal(attended, kernels.attend(expected, expected_keys, expected_values, near, positions))
    assert attended.any()


def test_rows_in_pages_answer_as_alone():
    here = known("llama")
    here.loaded.decoder.kernels = TritonKernels()
    engine = Engine(here.loaded, AMPLE, EngineOptions(block_tokens=4))
    engine.insert([answered.sequence(str(number), limit=5) for number, answered in enumerate(here.pool[:3])])
    done = drain(engine)
    assert [done[str(number)].generated_ids for number in range(3)] == [one.up_to(5) for one in here.pool[:3]]
