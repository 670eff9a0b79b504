"""The rows of the running batch and the steps of the decode loop on them.

Rows that join pass through `prefill`, `next_tokens` and `_retire`; running rows pass through `decode_one_token`,
`next_tokens` and `_retire`. `Engine` decides which rows join and leave, and when. The file is long because every change
of `rows` must change the cache and the cursor with it.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Several
from itertools import accumulate
from time import perf_counter

import torch
from torch import Tensor

from inference.accelerator import clock_of, of_rows, to_host
from inference.local.batch_rows import BatchRow
from inference.local.cost_counters import RunTally, StepLog
from inference.local.forward.adapters import AdaptedPass
from inference.local.forward.forward_pass import Cursor, decode_one_token, decode_several_tokens, prefill, prefill_alone
from inference.local.forward.longrope import prefill_of
from inference.local.kv.kv_cache import KvCache
from inference.local.kv.prefill_pool import PooledRow
from inference.local.kv.query_groups import token_rows
from inference.local.loading.model_loading import LoadedModel
from inference.local.prefix_sharing import PrefixSharing
from inference.local.row_probe import RowProbe
from inference.local.thread_trials import ThreadTrials
from inference.local.tokens.guessed_tokens import Guessing
from inference.local.tokens.next_tokens import keep_prompt_logprobs, next_tokens
from inference.local.tokens.pass_tokens import guessed_tokens, pass_tokens, prompt_parts
from inference.sequences import FinishedSequence


class RunningBatch:
    """`rows[i]` is row i of the KV cache; a finished row stays there until it is replaced or the batch is compacted."""

    def __init__(
        self,
        loaded: LoadedModel,
        kv: KvCache,
        step_log: StepLog | None = None,
        thread_trials: ThreadTrials | None = None,
        probe: RowProbe | None = None,
        shares_prefixes: bool = False,
        guessing: Guessing | None = None,
    ) -> None:
        self.sharing = PrefixSharing(kv, shares_prefixes)
        self.loaded, self.kv, self._step_log, self._thread_trials = loaded, kv, step_log or StepLog(), thread_trials
        self._probe, self._clock = probe, clock_of(loaded.device)
        self._guessing = guessing if guessing and loaded.mixes_passes else Guessing(0)
        self.rows: list[BatchRow] = []
        self.tally = RunTally()
        self.finished: list[FinishedSequence] = []  # since the last call of take_finished
        self._cursor: Cursor | None = None  # None: rows joined, finished or moved since the last step

    def prefill(self, rows: Several[BatchRow], indices: Several[int]) -> None:
        """Adds rows at these indices and computes their first token in one padded pass, without cached beginnings."""
        started = perf_counter()
        prompts = [row.token_ids for row in rows]
        self.reserve_joiners(rows, indices)
        cached = [self.sharing.tokens(row) for row in rows]
        logits = self._prefilled(rows, indices, prompts, cached)
        self._join(rows, indices, cached, logits)
        ended = perf_counter()
        computed = [len(prompt) - held for prompt, held in zip(prompts, cached, strict=True)]
        self.tally.count_prefill(computed, ended - started)
        self._step_log.count_prefill(len(rows), max(computed), started, ended)
        self._pause_if_done()

    def _join(self, rows: Several[BatchRow], indices: Several[int], cached: Several[int], logits: Tensor) -> None:
        """Adds prefilled rows, each with its next token; the first cached[i] tokens of row i were in the cache."""
        for row, held in zip(rows, cached, strict=True):
            if row.cached_prompt_tokens is None:
                row.cached_prompt_tokens = held
        self.add(rows, indices)
        self._retire(rows, self._next_tokens(logits, rows))
        for row, index in zip(rows, indices, strict=True):
            self.sharing.keep(row, index)

    def _next_tokens(self, logits: Tensor, rows: Several[BatchRow]) -> Tensor:
        return next_tokens(logits, rows, self.loaded.eos_ids, self.loaded.suppressed_ids)

    def _prefilled(
        self, rows: Several[BatchRow], indices: Several[int], prompts: Several[Several[int]], cached: Several[int]
    ) -> Tensor:
        """Returns the logits of the next tokens; prefills a row alone if it asks for its prompt's log probabilities."""
        model, kv, asking = self.loaded.decoder, self.kv, [row for row in rows if row.sequence.prompt_logprobs]
        if asking and len(rows) > 1:
            each = zip(rows, indices, prompts, cached, strict=True)
            return torch.cat([self._prefilled([row], [index], [prompt], [held]) for row, index, prompt, held in each])
        with prefill_of(self.loaded.longrope, [len(row.sequence.prompt_ids) for row in rows], [*map(len, prompts)]):
            if not asking:
                adapted = self._adapted(rows)
                return prefill(model, kv, indices, prompts, self.loaded.pad_id, cached, adapted=adapted)
            with self._adapted(rows):
                whole = prefill_alone(model, kv, indices[0], prompts[0])
        keep_prompt_logprobs(rows[0], whole, 0)
        return whole[-1:]

    def _adapted(self, rows: Several[BatchRow]) -> AdaptedPass:
        """Returns the forward pass of these rows, each with its adapter."""
        return self.loaded.adapters.serve([row.sequence.adapter for row in rows])

    def pool(self, row: BatchRow) -> PooledRow:
        """Returns a row whose prompt is prefilled in pieces, with its cached beginning."""
        return PooledRow(self.kv, row, self.sharing.blocks(row))

    def prefill_piece(self, pooled: PooledRow, most: int) -> None:
        """Prefills at most `most` further tokens of a pooled row; with its last token it joins behind the last row."""
        started, row, first, index = perf_counter(), pooled.row, pooled.prefilled, len(self.rows)
        count, joins = min(most, pooled.left), most >= pooled.left
        if joins:
            self.reserve_joiners([row], [index])
        lengths = [len(row.sequence.prompt_ids)], [len(pooled.token_ids)]
        with prefill_of(self.loaded.longrope, *lengths), self._adapted([row]):
            logits = pooled.prefill(self.loaded.decoder, count)
        self.tally.count_memory(self.kv.nbytes + pooled.nbytes)
        if row.sequence.prompt_logprobs:
            keep_prompt_logprobs(row, logits, first)
        if joins:
            shared = self.sharing.tokens(row)
            self.kv.write_row(index, len(pooled.token_ids), pooled.as_row(), shared)
            self._join([row], [index], [pooled.found], logits[-1:])
        ended = perf_counter()
        pooled.seconds += ended - started
        if joins:
            self.tally.count_prefill([len(pooled.token_ids) - pooled.found], pooled.seconds)
        self._step_log.count_prefill(1, count, started, ended)
        self._pause_if_done()

    def begin(self, row: BatchRow) -> None:
        """Lets a row join behind the last one; the next steps compute its prompt together with the tokens of others."""
        index = len(self.rows)
        self.reserve_joiners([row], [index])
        row.joined = self.sharing.tokens(row) + self.sharing.copy_part(row, index)
        if row.cached_prompt_tokens is None:
            row.cached_prompt_tokens = row.joined
        self.add([row], [index])
        self.tally.count_joiner(row.length)

    @property
    def prompt_room(self) -> int:
        """The number of tokens of joining rows' prompts that a step should compute at most."""
        return self._guessing.costs.room(len(self.rows))

    def decode(self, prompt_tokens: int = 0) -> None:
        """Computes a token for every row, or several if guesses are right; the tokens of finished rows are dropped.

        It also computes the next `prompt_tokens` of the joiners' prompts, or one of each.
        """
        self._compute_again()
        started, began = perf_counter(), self._clock()
        self.reserve({index: row.cached_tokens + 1 for index, row in enumerate(self.rows)})
        if self._cursor is None:
            self.kv.close_gaps()
        parts = prompt_parts(self.rows, prompt_tokens)
        guesses = guessed_tokens(self.rows, self.kv.arrangement.tables, self._guessing)
        guessed, joining, right, width = sum(map(len, guesses)), sum(parts.values()), 0, 0
        if guessed or parts:
            running, right = self._decode_several(guesses, parts)
        else:
            cursor = self._cursor = self._cursor or self._first_cursor()
            with self._adapted(self.rows):
                logits = decode_one_token(self.loaded.decoder, self.kv, cursor)
            if self._probe is not None:
                self._probe.after_pass(self.rows)
            cursor.tokens = self._next_tokens(logits, self.rows)[:, None]
            running, width = self._retire(self.rows, cursor.tokens[:, 0]), cursor.width
        ended, computed_s = perf_counter(), self._clock() - began
        # rows that are still joining are not decoded
        rows, seconds = sum(row.joined is None for row in self.rows), ended - started
        self.tally.count_decode(rows, running, seconds, guessed, right)
        tokens, computed = 1 + right / running if right else 1, len(self.rows) - len(parts) + guessed + joining
        self._step_log.count_decode(rows, self._read_tokens(width), started, ended, tokens, [*parts.values()])
        tables = self.kv.arrangement.tables
        if tables is not None:
            self._step_log.shared_tokens = tables.shared_tokens
            self._guessing.count(computed, guessed + joining, computed_s)
            self._guessing.verified(guessed, right)
        if parts:
            self.tally.count_joining(joining, seconds * self._guessing.costs.share(joining, computed))
        if self._thread_trials is not None:
            self._thread_trials.count(computed, seconds, ended)
        self._pause_if_done()

    def _decode_several(self, guesses: Several[Several[int]], parts: Mapping[int, int]) -> tuple[int, int]:
        """Computes the rows' newest tokens with guesses behind them, and parts of the prompts of joining rows.

        Appends tokens until one is not the guess. A token is chosen only once those before it are appended, so that
        each row gets what it would get without guesses. Returns how many rows got tokens, and how many guesses were
        right.
        """
        rows, guesses = self.rows, guesses or [()] * len(self.rows)
        tokens, places = pass_tokens(rows, guesses, parts)
        with self._adapted([rows[row] for row, _ in token_rows([*map(len, tokens)])]):
            logits = decode_several_tokens(self.loaded.decoder, self.kv, tokens, places, parts)
        self._cursor, first = None, len(rows)
        if self._probe is not None:
            self._probe.after_pass(rows)
        joined = [index for index in parts if rows[index].join(parts[index])]
        getting = [index for index, row in enumerate(rows) if row.joined is None]
        those = [rows[index] for index in getting]
        running, right = self._retire(those, self._next_tokens(of_rows(logits, getting), those)), 0
        for index in joined:
            self.sharing.keep(rows[index], index)
        starts = accumulate(map(len, guesses), initial=first)
        verified = [(row, guess, start) for row, guess, start in zip(rows, guesses, starts, strict=False) if guess]
        for place in range(max(map(len, guesses), default=0)):
            verified = [
                (row, guess, start)
                for row, guess, start in verified
                if place < len(guess) and row.running and row.generated[-1] == guess[place]
            ]
            if not verified:
                break
            behind = of_rows(logits, [start + place for _, _, start in verified])
            going_on = [row for row, _, _ in verified]
            right += self._retire(going_on, self._next_tokens(behind, going_on))
        return running, right

    def _compute_again(self) -> None:
        """Prefills the rows that grow beyond longrope's original context now, which also gives each its next token."""
        longrope, passing = self.loaded.longrope, []
        if longrope is not None and longrope.computes_again:
            passing = [
                (row, index)
                for index, row in enumerate(self.rows)
                if row.running and longrope.passes_now(len(row.sequence.prompt_ids), row.cached_tokens)
            ]
        for row, index in passing:
            self.prefill([row], [index])

    def _read_tokens(self, width: int) -> float:
        """Returns the cached tokens that a step reads for each row: the longest row's, or in blocks the mean."""
        if not self.kv.in_blocks:
            return width
        return sum(row.cached_tokens for row in self.rows) / len(self.rows)

    def _pause_if_done(self) -> None:
        if not self.any_running():
            self._step_log.pause()

    def _first_cursor(self) -> Cursor:
        return Cursor.from_host(
            self.kv,
            tokens=[row.generated[-1] for row in self.rows],
            positions=[row.cached_tokens for row in self.rows],
            running=[row.running for row in self.rows],
        )

    def _retire(self, rows: Several[BatchRow], tokens: Tensor) -> int:
        """Appends the tokens to running rows and collects the rows that finish; returns how many rows were running."""
        running = 0
        for row, token in zip(rows, to_host(tokens), strict=True):
            if row.running:
                running += 1
                if row.append(token, self.loaded.eos_ids, self.loaded.tokenizer):
                    self.finished.append(row.result())
                    if self._probe is not None:
                        self._probe.ended(row)
                    self.tally.count_finished(row.new_tokens)
                    self._cursor = None
        return running

    def reserve_joiners(self, rows: Several[BatchRow], indices: Several[int]) -> None:
        """Reserves memory for joining rows, all of them or none, beside the cached beginnings that they share."""
        shared = {index: self.sharing.blocks(row) for index, row in zip(indices, rows, strict=True)}
        self.reserve({index: len(row.token_ids) for index, row in zip(indices, rows, strict=True)}, shared)

    def reserve(self, tokens: Mapping[int, int], shared: Mapping[int, Several[int]] | None = None) -> None:
        """Reserves memory for tokens[i] tokens of row i, the first in blocks shared[i]; or raises BudgetExceeded."""
        cached = dict(enumerate(row.cached_tokens if row.running else 0 for row in self.rows))
        held = {**cached, **tokens}
        if self.kv.reserve([held[index] for index in range(len(held))], [*cached.values()], shared):
            self._cursor = None
        self.tally.count_memory(self.kv.nbytes)

    def add(self, rows: Several[BatchRow], indices: Several[int]) -> None:
        """Adds rows that the cache already holds, replacing finished rows or behind the last row."""
        for row, index in zip(rows, indices, strict=True):
            self.rows[index : index + 1] = [row]
            row.vacated = False
        self._cursor = None

    def take_finished(self) -> list[FinishedSequence]:
        """Returns the rows that finished since the last call, without those that were removed."""
        finished, self.finished = self.finished, []
        return finished

    def any_running(self) -> bool:
        """Returns whether any row is unfinished."""
        return any(row.running for row in self.rows)

    def reset(self, continuous: bool = False) -> None:
        """Starts a run without rows; a static batch has its KV cache in a rectangle, as the papers count memory."""
        for index in range(len(self.rows)):
            self.vacate(index)
        self.rows, self._cursor, self.tally = [], None, RunTally()
        self.kv.clear(in_blocks=continuous and self.loaded.in_blocks)
        self._step_log.pause()

    def mark_removed(self, row: BatchRow) -> None:
        """Finishes a row that a caller removed; it keeps its index until it is replaced or the batch is compacted."""
        row.finish_reason, self._cursor = "removed", None

    def compact(self) -> None:
        """Moves the last rows to the indices of finished ones."""
        for row in [row for row in reversed(self.rows) if not row.running]:
            self.drop(row)

    def vacate(self, index: int) -> None:
        """Frees the memory of a row, which keeps its index; later rows may share its complete blocks."""
        row = self.rows[index]
        if not row.vacated:
            self.sharing.keep(row, index)
        self.kv.clear_row(index)
        row.vacated, row.joined = True, None

    def drop(self, row: BatchRow) -> None:
        """Drops a row; the last row moves to its index."""
        index = self.rows.index(row)
        self.vacate(index)
        last = self.rows.pop()
        self.kv.remove_row(index, len(self.rows), last.cached_tokens)
        if last is not row:
            self.rows[index] = last
        self._cursor = None

    def release_cache(self) -> list[BatchRow]:
        """Frees the cache and returns the rows that were running in it."""
        self.kv.release()
        rows, self.rows, self._cursor = self.rows, [], None
        for row in rows:
            row.joined = None
        return [row for row in rows if row.running]
