"""Runs the steps of a running batch, with their guesses, length probe, thread trials and figures.

Each step first decides what its pass computes. What it has computed is counted once the host has read its tokens: at
once on a CPU. A device goes on with the next pass meanwhile, whose input are the tokens that it chose itself, and the
host reads them one pass later. A row that had ended by then gets a further token, which is thrown away.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from inference.accelerator import clock_of
from inference.engine_requests import FinishedRow
from inference.local.batch_rows import BatchRow
from inference.local.costs.cost_counters import RunTally, StepLog
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_cache import BudgetExceeded
from inference.local.pass_tokens import guessed_tokens, prompt_parts
from inference.local.running_batch import Decoded, RunningBatch, Unread


class _Pass(NamedTuple):
    """A pass that the device was given, and what is counted of it."""

    unread: Unread
    rows: Sequence[BatchRow]  # all rows of a step; empty for a prefill, which computes only `parts`
    parts: Mapping[int, int]
    started: float  # by `perf_counter`
    began: float  # by the clock of the device


class DecodeSteps:
    """Computes and counts the passes of one batch."""

    def __init__(self, batch: RunningBatch, options: EngineOptions) -> None:
        self.batch, self.tally = batch, RunTally()
        self.finished: list[FinishedRow] = []  # the rows that ended since the last call of `take_finished`
        guesses = options.guessing is not None and batch.loaded.mixes_passes
        self._guessing = options.guessing if options.guessing and guesses else Guessing(0)
        self._log, self._probe, self._trials = options.step_log or StepLog(), options.probe, options.thread_trials
        self._clock = clock_of(batch.loaded.device)
        self._in_flight: _Pass | None = None  # the pass that the device was given last, if its tokens are read later
        self._read_at = 0.0, 0.0  # when the tokens of a pass were read last, by both clocks

    def begin(self) -> None:
        """Begins to count another run."""
        self.tally, self._in_flight = RunTally(), None
        self._log.pause()

    @property
    def iterations(self) -> float:
        """The iterations of this run, with the pass whose tokens have not been read."""
        return self.tally.iterations + (self._in_flight is not None)

    @property
    def prompt_room(self) -> int:
        """The most tokens of joining rows' prompts that a step should compute."""
        return self._guessing.costs.room(len(self.batch.rows))

    def take_finished(self) -> list[FinishedRow]:
        """Returns the rows that finished since the last call, without those that were removed."""
        finished, self.finished = self.finished, []
        return finished

    def prefill(self, rows: Sequence[BatchRow]) -> None:
        """Lets rows join, and computes their prompts and their first token in one padded pass."""
        started, first = perf_counter(), len(self.batch.rows)
        self.batch.join(rows)
        self._prefill({index: row.unjoined for index, row in enumerate(rows, first)}, started)

    def step(self, room: int) -> None:
        """Computes a token for each row, and `room` tokens of joining rows' prompts, but at least one of each prompt.

        Each part of a prompt has a pass of its own if one pass cannot compute both, or if no row gets a token.
        """
        batch, rows = self.batch, self.batch.rows
        parts = prompt_parts(rows, room)
        if parts and not (batch.loaded.mixes_passes and any(row.decodes for row in rows)):
            for index, count in parts.items():
                self._prefill({index: count}, perf_counter())
            parts = {}
        ahead = self._runs_ahead(parts)
        if not ahead:
            self.read()
        if not parts and not any(row.decodes for row in rows):
            self.read()
            return
        started, began = perf_counter(), self._clock()
        try:
            batch.reserve()
        except BudgetExceeded:
            if self.read() is None:
                raise
            return self.step(room)  # some row may have ended
        guesses = [] if ahead else guessed_tokens(rows, batch.kv, self._guessing)
        if self._probe is not None:
            self._probe.before_pass(rows, parts, decodes=True)
        self._follow(_Pass(batch.step(parts, guesses, ahead), [*rows], parts, started, began), ahead)

    def read(self) -> Sequence[BatchRow] | None:
        """Reads the tokens of the pass that the device was given last; returns the `redrawn` rows, None without one."""
        last, self._in_flight = self._in_flight, None
        if last is None:
            return None
        return self._count(last) if any(row.running for row in last.unread.rows) else ()

    def forget(self) -> None:
        """Throws the tokens away that have not been read, because the rows' cache is lost."""
        last, self._in_flight = self._in_flight, None
        for row in last.unread.rows if last is not None else ():
            row.ahead = 0

    def _runs_ahead(self, parts: Mapping[int, int]) -> bool:
        """Returns whether the host may read the tokens of the next pass while the pass behind it is computed.

        Not if the host takes part in the choice of tokens: by penalties, biases, formats, least lengths, budgets of
        thinking, log probabilities or promising guesses. Nor while the probe reads states.
        """
        rows = self.batch.rows
        return (
            self.batch.loaded.runs_ahead
            and not any(row.asks_of_logits and row.running for row in rows)
            and not (self._probe is not None and self._probe.reads(rows, parts))
            and not any(guessed_tokens(rows, self.batch.kv, self._guessing))
        )

    def _prefill(self, parts: Mapping[int, int], started: float) -> None:
        began, ahead = self._clock(), self._runs_ahead(parts)
        if not ahead:
            self.read()
        if self._probe is not None:
            self._probe.before_pass(self.batch.rows, parts, decodes=False)
        self._follow(_Pass(self.batch.prefill(parts, ahead), (), parts, started, began), ahead)

    def _follow(self, given: _Pass, ahead: bool) -> None:
        """Reads the tokens of the pass before, then those of this pass, unless the device runs `ahead`."""
        redrawn = self.read() or ()
        if ahead and given.unread.rows:
            unread = given.unread._replace(void=redrawn)
            self.batch.run_ahead(unread)
            self._in_flight = given._replace(unread=unread)
        else:
            self._count(given)

    def _count(self, given: _Pass) -> Sequence[BatchRow]:
        """Reads the tokens of a pass, and counts what it computed; returns the `redrawn` rows."""
        (unread, rows, _, started, began), counts = given, [*given.parts.values()]
        started, began = max(started, self._read_at[0]), max(began, self._read_at[1])
        decoded = self.batch.read(unread)
        self._read_at = ended, clock = perf_counter(), self._clock()
        ended_rows, computed_s = self._take_ended(), clock - began
        if self._probe is not None:
            self._probe.after_pass(ended_rows, computed_s)
        if rows:
            self._count_step(given, decoded, started, ended, computed_s)
        else:
            self.tally.count_prefill(counts, len(unread.rows), ended - started)
            self._log.count_prefill(len(counts), max(counts), started, ended)
        if not self.batch.any_running():
            self._log.pause()
        return decoded.redrawn

    def _count_step(self, given: _Pass, decoded: Decoded, started: float, ended: float, computed_s: float) -> None:
        (unread, rows, parts, _, _), (running, right, _), batch = given, decoded, self.batch
        guessed, joining, seconds = sum(map(len, unread.guesses)), sum(parts.values()), ended - started
        computed = len(rows) - len(parts) + guessed + joining
        self.tally.count_decode(len(unread.rows), running, seconds, guessed, right)
        read = batch.kv.arrangement.read_tokens([row.cached_tokens for row in rows], unread.width)
        self._log.count_decode(
            len(unread.rows), read, started, ended, 1 + right / running if right else 1, [*parts.values()]
        )
        self._log.shared_tokens = batch.kv.arrangement.shared_tokens
        if batch.kv.in_blocks:
            self._guessing.count(computed, guessed + joining, computed_s)
            self._guessing.verified(guessed, right)
        if parts:
            self.tally.count_joining(joining, seconds * self._guessing.costs.share(joining, computed))
        if self._trials is not None:
            self._trials.count(computed, seconds, ended)

    def _take_ended(self) -> list[BatchRow]:
        self.tally.count_memory(self.batch.kv.nbytes)
        ended, self.batch.ended = self.batch.ended, []
        for row in ended:
            self.finished.append(row.result())
            self.tally.count_finished(row.new_tokens)
        return ended
