"""The blocks of each row: several rows read the blocks of a shared prefix, every other block has one row at most.

A row writes behind its last token only, and shares only complete blocks in front of it. So no shared block is written,
and a row that differs from others within a block has that block for itself. A row of a model whose layers all have a
window shares no blocks, and has as many as the window needs: its next token is written over its oldest one.
"""

import sys
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from inference.accelerator import to_device
from inference.local.kv.shared_prefixes import SharedPrefixes

# Attention computes one product for at most this many rows that read a shared block after its first row. Each product
# makes a copy of the block, and is padded if it has fewer rows. Not tuned.
MOST_READERS = 16


@dataclass(frozen=True, slots=True)
class SharedReads:
    """The reads of shared blocks by rows after the first one; entries are blocks, each with equally many readers."""

    block_of: Tensor  # [entries] the block of each entry
    row_of: Tensor  # [entries * readers] the row of each reader; 0 if there is none


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Index tensors with which attention gathers rows into blocks, and blocks into rows.

    A place is one block of one row: row * `most` + number of the block in the row, where `most` is the largest number
    of blocks that a row has. A read is a block that a row reads. If the row is the first one that has the block, the
    read has the block's number; other reads are numbered behind all blocks, in the order of `shared`.
    """

    blocks: int  # the number of blocks that attention reads: up to the last one that a row has
    block_at: Tensor  # [rows * most] the read at each place; the row's first read at places behind its last block
    place_of: Tensor  # [reads] the place of each read; 0 if the block is free, or the reader missing
    row_of: Tensor  # [blocks] the first row that has each block; 0 for a free block
    by_row: Tensor  # [places in use] the reads of row 0, then of row 1, ...
    starts: Tensor  # [rows] where each row begins in `by_row`
    shared: SharedReads | None  # None: each block has one row


def index_of_blocks(rows: Sequence[Sequence[int]], device: torch.device) -> BlockIndex:
    """Returns the index tensors for rows that have these blocks, at least one each."""
    counts = [len(row) for row in rows]
    blocks, most = max(map(max, rows)) + 1, max(counts)
    reads, entries, readers = _reads([*chain.from_iterable(rows)], blocks)
    starts = to_device([0, *accumulate(counts[:-1])], device)
    by_row = to_device(reads, device)
    places = to_device([row * most + n for row, count in enumerate(counts) for n in range(count)], device)
    block_at = by_row[starts].repeat_interleave(most)
    block_at[places] = by_row
    place_of = torch.zeros(blocks + len(entries) * readers, dtype=torch.long, device=device)
    place_of[by_row] = places
    row_of = place_of // most
    shared = SharedReads(to_device(entries, device), row_of[blocks:]) if entries else None
    return BlockIndex(blocks, block_at, place_of, row_of[:blocks], by_row, starts, shared)


def _reads(of_rows: list[int], blocks: int) -> tuple[list[int], list[int], int]:
    """Returns the read of each block of all rows, the block of each entry, and the number of readers of an entry."""
    if len(set(of_rows)) == len(of_rows):
        return of_rows, [], 0
    first: set[int] = set()
    further: dict[int, list[int]] = {}  # by block: the indices of its repetitions in `of_rows`
    for number, block in enumerate(of_rows):
        if block in first:
            further.setdefault(block, []).append(number)
        first.add(block)
    readers = min(MOST_READERS, max(map(len, further.values())))
    reads, entries = list(of_rows), list[int]()
    for block, numbers in further.items():
        for reader, number in enumerate(numbers):
            if reader % readers == 0:
                entries.append(block)
            reads[number] = blocks + (len(entries) - 1) * readers + reader % readers
    return reads, entries, readers


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """Changes to the contents of blocks: sources are copied to targets, all at once, then `zeroed` become zero."""

    of_rows: bool = True  # whether any row has other blocks than before
    sources: Sequence[int] = ()
    targets: Sequence[int] = ()
    zeroed: Sequence[int] = ()


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Returns the number of blocks that hold `tokens` tokens of one row."""
    return -(-tokens // block_tokens)


class BlockTables:
    """The blocks of each row in the order of its tokens.

    Attention reads all blocks up to the last one that a row has. So rows get the lowest blocks. A kept prefix in such a
    block is moved behind the blocks of rows, or the least recently used prefix is evicted, wherever it is. After many
    rows have left, `close_gaps` moves the last blocks into the gaps.
    """

    def __init__(self, blocks: int, block_tokens: int, most_tokens: int | None = None) -> None:
        """A row keeps its newest `most_tokens` tokens, or all its tokens if `most_tokens` is None."""
        self.blocks, self.block_tokens = blocks, block_tokens
        self.most_blocks = sys.maxsize if most_tokens is None else blocks_for(most_tokens, block_tokens)
        self.rows: list[list[int]] = []
        self.prefixes = SharedPrefixes()
        self._readers: dict[int, int] = {}  # the number of rows that have each block
        self._unread = list(range(blocks))  # the blocks that no row has, in ascending order
        self._free = list(range(blocks))  # the unread blocks that are not kept prefixes either, in ascending order

    @property
    def taken(self) -> int:
        """The number of blocks that rows have; kept prefixes count as free memory."""
        return self.blocks - len(self._unread)

    @property
    def shared_tokens(self) -> int:
        """The number of tokens by which the cache would be larger if each row had its own copy of shared blocks."""
        return self.block_tokens * self._saved()

    @property
    def columns(self) -> int:
        """The number of tokens that fit in the blocks of the longest row."""
        return max(map(len, self.rows), default=0) * self.block_tokens

    def needed_tokens(self, lengths: Sequence[int], shared: Sequence[Sequence[int]] = ()) -> int:
        """Returns how many tokens fit in the blocks that rows of these lengths need.

        Rows share blocks as they do now, and rows that join share the blocks `shared`.
        """
        saved = self._saved()
        saved += sum(map(len, shared)) - len(set(chain(*shared)) - self._readers.keys())
        return self.block_tokens * (sum(self._wanted(lengths)) - saved)

    def grow(self, lengths: Sequence[int], shared: Mapping[int, Sequence[int]]) -> BlockChanges | None:
        """Gives row i blocks for lengths[i] tokens, the first ones from shared[i]; returns None if too few are free.

        A row that gets shared blocks must not have written to the blocks that they replace.
        """
        held = [len(row) for row in self.rows] + [0] * (len(lengths) - len(self.rows))
        for row, blocks in shared.items():
            held[row] = max(held[row], len(blocks))
        missing = [max(0, want - has) for want, has in zip(self._wanted(lengths), held, strict=False)]
        kept = {block for block in chain(*shared.values()) if block not in self._readers}
        if sum(missing) > len(self._unread) - len(kept):
            return None
        self.rows += [[] for _ in range(len(lengths) - len(self.rows))]
        if not any(missing) and not any(shared.values()):
            return BlockChanges(of_rows=False)
        for row, blocks in shared.items():
            self._share(row, blocks)
        changes, lowest = self._take(sum(missing))
        for blocks, count in zip(self.rows, missing, strict=False):
            blocks += lowest[:count]
            del lowest[:count]
        return changes

    def clear(self, row: int) -> BlockChanges:
        """Takes all blocks from a row, which keeps its index; prefixes are kept for later rows, the rest becomes zero.

        The end of a prefix counts as used less recently than its beginning, without which it cannot be found.
        """
        blocks, self.rows[row] = self.rows[row], []
        return BlockChanges(zeroed=[block for block in reversed(blocks) if self._leave(block)])

    def clear_all(self, keep_prefixes: bool) -> BlockChanges:
        """Takes all rows away, and all prefixes unless they are kept for later rows."""
        zeroed = [block for row in range(len(self.rows)) for block in self.clear(row).zeroed]
        self.rows = []
        if not keep_prefixes:
            zeroed += self.prefixes.evict(self.prefixes.unread)
            self._free = list(self._unread)
        return BlockChanges(zeroed=zeroed)

    def close_gaps(self) -> BlockChanges:
        """Moves the last blocks of rows into gaps once a third of the blocks up to the last one belong to no row.

        Prefixes that are kept in the gaps change places with the moved blocks.
        """
        end, taken = 1 + max((max(row) for row in self.rows if row), default=-1), self.taken
        if 2 * end <= 3 * taken:
            return BlockChanges(of_rows=False)
        gaps = self._unread[: bisect_left(self._unread, taken)]
        moved = [block for block in self._readers if block >= taken]
        place_of = dict(zip(moved, gaps, strict=True))
        kept = {gap: block for block, gap in place_of.items() if gap in self.prefixes}
        self.rows = [[place_of.get(block, block) for block in row] for row in self.rows]
        self._readers = {place_of.get(block, block): count for block, count in self._readers.items()}
        self.prefixes.move(place_of | kept)
        self._unread = sorted([*self._unread[len(gaps) :], *moved])
        self._free = [block for block in self._unread if block not in self.prefixes]
        emptied = [block for block, gap in place_of.items() if gap not in kept]
        return BlockChanges(True, [*place_of, *kept], [*place_of.values(), *kept.values()], emptied)

    def block_of(self, row: int, position: int) -> int:
        """Returns the block of a row's token at this position."""
        return self.rows[row][position // self.block_tokens % self.most_blocks]

    def _saved(self) -> int:
        return sum(map(len, self.rows)) - self.taken

    def _wanted(self, lengths: Sequence[int]) -> list[int]:
        return [min(blocks_for(tokens, self.block_tokens), self.most_blocks) for tokens in lengths]

    def _share(self, row: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block not in self._readers:
                del self._unread[bisect_left(self._unread, block)]
                self.prefixes.read(block)
            self._readers[block] = self._readers.get(block, 0) + 1
        for replaced in self.rows[row][: len(blocks)]:
            self._leave(replaced)
        self.rows[row][: len(blocks)] = blocks

    def _leave(self, block: int) -> bool:
        """Takes a block from one row; returns whether it is free now."""
        self._readers[block] -= 1
        if self._readers[block]:
            return False
        del self._readers[block]
        insort(self._unread, block)
        if block in self.prefixes:
            self.prefixes.leave(block)
            return False
        insort(self._free, block)
        return True

    def _take(self, count: int) -> tuple[BlockChanges, list[int]]:
        """Takes the lowest blocks that no row has; returns them, after prefixes kept there were moved or evicted."""
        lowest = self._unread[:count]
        del self._unread[:count]
        kept = [block for block in lowest if block in self.prefixes]
        del self._free[: count - len(kept)]
        for evicted in self.prefixes.evict(self.prefixes.unread - len(self._unread)):
            if evicted not in kept:
                insort(self._free, evicted)
        sources = [block for block in kept if block in self.prefixes]
        targets = [self._free.pop() for _ in sources]
        self.prefixes.move(dict(zip(sources, targets, strict=True)))
        self._readers |= dict.fromkeys(lowest, 1)
        return BlockChanges(True, sources, targets, kept), lowest
