"""Runs the steps of a running batch, with their guesses, length probe, thread trials and figures.

Each step first decides what its pass computes, and then counts what the pass has computed.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter

from inference.accelerator import clock_of
from inference.engine_requests import FinishedRow
from inference.local.batch_rows import BatchRow
from inference.local.costs.cost_counters import RunTally, StepLog
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.pass_tokens import guessed_tokens, prompt_parts
from inference.local.running_batch import RunningBatch


class DecodeSteps:
    """Computes and counts the passes of one batch."""

    def __init__(self, batch: RunningBatch, options: EngineOptions) -> None:
        self.batch, self.tally = batch, RunTally()
        self.finished: list[FinishedRow] = []  # the rows that ended since the last call of `take_finished`
        guesses = options.guessing is not None and batch.loaded.mixes_passes
        self._guessing = options.guessing if options.guessing and guesses else Guessing(0)
        self._log, self._probe, self._trials = options.step_log or StepLog(), options.probe, options.thread_trials
        self._clock = clock_of(batch.loaded.device)

    def begin(self) -> None:
        """Begins to count another run."""
        self.tally = RunTally()
        self._log.pause()

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
        if not parts and not any(row.decodes for row in rows):
            return
        started, began = perf_counter(), self._clock()
        batch.reserve()
        guesses = guessed_tokens(rows, batch.kv, self._guessing)
        if self._probe is not None:
            self._probe.before_step(rows, parts)
        decoded = batch.step(parts, guesses)
        ended, computed_s = perf_counter(), self._clock() - began
        ended_rows = self._take_ended()
        if self._probe is not None:
            self._probe.after_step(ended_rows, computed_s)
        decoding, seconds = sum(row.joined is None for row in rows), ended - started
        guessed, joining, running, right = sum(map(len, guesses)), sum(parts.values()), decoded.running, decoded.right
        computed = len(rows) - len(parts) + guessed + joining
        self.tally.count_decode(decoding, running, seconds, guessed, right)
        read = batch.kv.arrangement.read_tokens([row.cached_tokens for row in rows], decoded.width)
        self._log.count_decode(decoding, read, started, ended, 1 + right / running if right else 1, [*parts.values()])
        self._log.shared_tokens = batch.kv.arrangement.shared_tokens
        if batch.kv.in_blocks:
            self._guessing.count(computed, guessed + joining, computed_s)
            self._guessing.verified(guessed, right)
        if parts:
            self.tally.count_joining(joining, seconds * self._guessing.costs.share(joining, computed))
        if self._trials is not None:
            self._trials.count(computed, seconds, ended)
        self._pause_if_done()

    def _prefill(self, parts: Mapping[int, int], started: float) -> None:
        self.batch.prefill(parts)
        ended_rows, ended = self._take_ended(), perf_counter()
        if self._probe is not None:
            self._probe.after_step(ended_rows)
        joined, counts = sum(self.batch.rows[index].joined is None for index in parts), [*parts.values()]
        self.tally.count_prefill(counts, joined, ended - started)
        self._log.count_prefill(len(parts), max(counts), started, ended)
        self._pause_if_done()

    def _take_ended(self) -> list[BatchRow]:
        self.tally.count_memory(self.batch.kv.nbytes)
        ended, self.batch.ended = self.batch.ended, []
        for row in ended:
            self.finished.append(row.result())
            self.tally.count_finished(row.new_tokens)
        return ended

    def _pause_if_done(self) -> None:
        if not self.batch.any_running():
            self._log.pause()
