"""The table of pages of a pass: each token's row, in as many columns for any rows of a cache."""

from dataclasses import replace

from inference.local.kv.kv_cache import KvCache
from tests.unit.inference.local.kv.test_kv_cache import LAYOUT

COUNTS = (1, 4, 2)


def cache_of(lengths: list[int], max_positions: int, budget_tokens: int = 400) -> KvCache:
    layout = replace(LAYOUT, max_positions=max_positions)
    kv = KvCache(layout, budget_tokens * layout.token_bytes, block_tokens=2, in_blocks=True, by_pages=True)
    kv.reserve(lengths)
    kv.prepare_decode({}, lengths, 0, COUNTS)
    return kv


def test_each_token_finds_the_blocks_of_its_row() -> None:
    kv = cache_of([3, 9, 5], max_positions=20)
    assert kv.pages is not None
    rows = [kv.arrangement.blocks_of(row) for row in (0, 1, 2, 1, 1, 1, 2)]  # each row's first token comes first
    assert [table[: len(row)].tolist() for table, row in zip(kv.pages.table, rows, strict=True)] == rows
    assert kv.pages.sizes.tolist() == [2] * 7


def test_the_table_is_as_wide_as_the_models_longest_row_and_no_wider_than_the_cache() -> None:
    widths = [
        cache_of(lengths, positions).pages.table.shape[1]  # type: ignore[union-attr]
        for lengths, positions in (([3, 9, 5], 21), ([1, 1, 1], 21), ([3, 9, 5], 1000))
    ]
    assert widths == [11, 11, 200]
