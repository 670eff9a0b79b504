"""The rows of the running batch: they join with their prompts, get their tokens step by step, and leave.

Prompts are computed in two ways: in a padded pass of their own (`prefill`), or in parts in the passes of the running
rows (`step`). Both return once the device has its work. `read` waits for the tokens and adds them to the rows; the next
pass may begin before, if the rows `run_ahead`. `DecodeSteps` decides what a pass computes and counts it; `Engine`
decides which rows join and leave.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inference.accelerator import of_rows, read_later, to_host
from inference.local.batch_rows import BatchRow
from inference.local.kv.kv_cache import KvCache
from inference.local.loading.model_loading import LoadedModel
from inference.local.next_tokens import next_tokens
from inference.local.prefix_sharing import PrefixSharing
from inference.local.row_passes import RowPasses

UNDECIDED = -1  # in place of a token that the host must choose, because its truncation needs all scores


class Unread(NamedTuple):
    """A pass whose tokens the host has not read yet."""

    rows: Sequence[BatchRow]  # those that get a token
    tokens: Tensor | None  # [rows], on the device; None without rows
    numbers: Callable[[], list[Any]]  # waits for the tokens, some of which may be UNDECIDED, and returns them
    logits: Tensor  # empty if the host chooses no token by them
    own: Sequence[int]  # which logits belong to `rows`
    at: Sequence[Sequence[int]] = ()  # which logits belong to the tokens of each row of the batch, its guesses included
    guesses: Sequence[Sequence[int]] = ()
    width: int = 0  # the columns of a rectangle's longest row
    void: Collection[BatchRow] = ()  # rows that went into this pass with another token than they have


class Decoded(NamedTuple):
    """The outcome of a pass."""

    running: int  # the number of rows that got a token
    right: int  # the number of guesses that came true
    redrawn: Sequence[BatchRow]  # the rows whose token the host chose, instead of the one with which the device goes on


class RunningBatch:
    """`rows[i]` is row i of the KV cache; a row that has ended stays there until it leaves."""

    def __init__(self, loaded: LoadedModel, kv: KvCache, shares_prefixes: bool = False) -> None:
        self.loaded, self.kv, self.sharing = loaded, kv, PrefixSharing(kv, shares_prefixes)
        self.rows: list[BatchRow] = []
        self.ended: list[BatchRow] = []  # the rows that ended since a caller last emptied this list
        self._passes = RowPasses(loaded, kv)

    def join(self, rows: Sequence[BatchRow]) -> None:
        """Adds rows behind the last one, each with its cached beginning; the next passes compute their prompts."""
        self.reserve(rows)
        for row in rows:
            row.joined = self.sharing.tokens(row)
        self.rows += rows
        self._passes.cursor = None

    def prefill(self, parts: Mapping[int, int], ahead: bool = False) -> Unread:
        """Computes the next parts[i] tokens of row i in a padded pass; complete prompts get their next token."""
        return self._advance(self._passes.of_prompts(self.rows, parts), parts, [*parts], ahead)

    def step(self, parts: Mapping[int, int], guesses: Sequence[Sequence[int]], ahead: bool = False) -> Unread:
        """Computes a token for every row that has joined, and further ones as far as its guesses come true.

        The same pass computes the next parts[i] tokens of row i's prompt. Memory must have been reserved. If the rows
        then run `ahead`, the host must not wait for the device meanwhile.
        """
        if self._passes.cursor is None:
            self.kv.close_gaps()
        if parts or any(guesses):
            logits, at = self._passes.of_several(self.rows, parts, guesses or [()] * len(self.rows))
            unread = self._advance(logits, parts, range(len(self.rows)), ahead)
            return unread._replace(at=at, guesses=guesses)
        logits, width = self._passes.of_newest(self.rows)
        return self._advance(logits, parts, range(len(self.rows)), ahead, width)

    def read(self, unread: Unread) -> Decoded:
        """Appends the tokens of a pass to its rows, and further ones as far as its guesses came true."""
        rows, numbers = unread.rows, unread.numbers()
        for row in rows:
            row.ahead = 0
        valid = [n for n, row in enumerate(rows) if row.running and row not in unread.void]
        anew = [n for n in valid if numbers[n] == UNDECIDED]
        redrawn = [rows[n] for n in anew]
        if redrawn:
            self._passes.cursor = None  # it would go on with the tokens that the device chose
            found = to_host(self._choose(unread.logits, [unread.own[n] for n in anew], redrawn))
            for n, token in zip(anew, found, strict=True):
                numbers[n] = token
        running = self._append([rows[n] for n in valid], [numbers[n] for n in valid])
        return Decoded(running, self._verify(unread.logits, unread.at, unread.guesses), redrawn)

    def run_ahead(self, unread: Unread) -> None:
        """Lets the next pass compute the tokens of a pass that the host has not read yet."""
        for row in unread.rows:
            row.ahead = int(row.running and row not in unread.void)
        self._passes.unread = unread.rows, unread.tokens

    def leave(self, row: BatchRow) -> None:
        """Takes a row out; later rows may share its complete blocks. The last row moves to its index."""
        index = self.rows.index(row)
        self.sharing.keep(row, index, row.cached_tokens)
        row.joined = None
        last = self.rows.pop()
        self.kv.remove_row(index, len(self.rows), last.cached_tokens)
        if last is not row:
            self.rows[index] = last
        self._passes.cursor = None

    def compact(self) -> None:
        """Takes out the rows that have ended."""
        for row in [row for row in reversed(self.rows) if not row.running]:
            self.leave(row)

    def clear(self, in_blocks: bool) -> None:
        """Takes out all rows; later ones are stored in blocks or in a rectangle."""
        for row in self.rows[::-1]:
            self.leave(row)
        self.kv.clear(in_blocks)

    def release_cache(self) -> list[BatchRow]:
        """Frees the cache and returns the rows that were running in it."""
        self.kv.release()
        rows, self.rows, self._passes.cursor = self.rows, [], None
        for row in rows:
            row.joined = None
        return [row for row in rows if row.running]

    def remove(self, row: BatchRow) -> None:
        """Ends a row that a caller removed; it leaves when the batch is compacted."""
        row.finish_reason, row.ahead, self._passes.cursor = "removed", 0, None

    def any_running(self) -> bool:
        """Returns whether any row is unfinished."""
        return any(row.running for row in self.rows)

    def reserve(self, joining: Sequence[BatchRow] = ()) -> None:
        """Reserves memory for all joining rows, or without any for each row's next token; raises BudgetExceeded."""
        kept = [row.cached_tokens if row.running else 0 for row in self.rows]
        shared = {index: self.sharing.blocks(row) for index, row in enumerate(joining, len(kept))}
        held = kept if joining else [row.length for row in self.rows]
        if self.kv.reserve([*held, *(row.length for row in joining)], kept, shared):
            self._passes.cursor = None

    def _advance(
        self, logits: Tensor, parts: Mapping[int, int], indices: Sequence[int], ahead: bool, width: int = 0
    ) -> Unread:
        """Counts the parts as computed, then chooses the next token of row indices[n] by logits[n] if it has joined."""
        for index, count in parts.items():
            row = self.rows[index]
            row.join(count)
            if row.joined is None:
                self.sharing.keep(row, index, row.length)
        at = [n for n, index in enumerate(indices) if self.rows[index].joined is None]
        rows = [self.rows[indices[n]] for n in at]
        if not rows:
            return Unread((), None, lambda: [], logits, at)
        drawn = ahead and any(row.uniforms for row in rows)
        decided = torch.ones(len(rows), dtype=torch.bool, device=logits.device) if drawn else None
        tokens = self._choose(logits, at, rows, decided)
        self._passes.follow(tokens)
        told = tokens if decided is None else torch.where(decided, tokens, UNDECIDED)
        kept = logits if drawn or not ahead else logits.new_empty(0)  # they take much memory during the next pass
        return Unread(rows, tokens, read_later(told), kept, at, width=width)

    def _choose(
        self, logits: Tensor, at: Sequence[int], rows: Sequence[BatchRow], decided: Tensor | None = None
    ) -> Tensor:
        """Returns the next tokens, [rows], by logits[at[n]] for row n; `decided` is that of `sample`."""
        own = logits if len(at) == len(logits) else of_rows(logits, at)
        return next_tokens(own, rows, self.loaded.eos_ids, self.loaded.suppressed_ids, decided)

    def _verify(self, logits: Tensor, at: Sequence[Sequence[int]], guesses: Sequence[Sequence[int]]) -> int:
        """Appends further tokens until one is not the guess; returns how many guesses were right.

        A token is chosen only once those before it are appended, so that a row gets what it would get without guesses.
        """
        right, verified = 0, [*zip(self.rows, at, guesses, strict=False)]
        for place in range(max(map(len, guesses), default=0)):
            verified = [
                (row, own, guess)
                for row, own, guess in verified
                if place < len(guess) and row.running and row.generated[-1] == guess[place]
            ]
            if not verified:
                break
            rows = [row for row, _, _ in verified]
            right += self._append(rows, to_host(self._choose(logits, [own[place + 1] for _, own, _ in verified], rows)))
        return right

    def _append(self, rows: Sequence[BatchRow], tokens: Sequence[int]) -> int:
        """Appends tokens[n] to row n; returns the number of rows."""
        longrope = self.loaded.longrope
        for row, token in zip(rows, tokens, strict=True):
            if row.append(token, self.loaded.eos_ids, self.loaded.tokenizer):
                self.ended.append(row)
            elif longrope and longrope.passes_now(len(row.sequence.prompt_ids), row.cached_tokens):
                row.joined = 0
            else:
                continue
            self._passes.cursor = None
        return len(rows)
