"""An engine that computes nothing: requests get their known answers at the pace of a published machine.

It has the interface of our engine, so that leases, joins, results and learning are the service's own. Its times are
those of the simulator: of prefills in groups, then of iterations that give each row a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from time import monotonic, perf_counter, sleep

from benchmarks import published_costs
from benchmarks.published_costs import Machine
from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest, FinishedRow, Generated, RunFigures
from inference.local.costs.cost_counters import StepLog
from scheduling.batch_partition import groups_by_padding

MACHINES: dict[str, Machine] = {
    "v100": published_costs.CHATGLM_6B_V100,  # Magnus: ChatGLM-6B on a V100
    "v100-4bit": published_costs.CHATGLM_6B_V100_4BIT,  # the same quantized, for VSQ
    "a100": published_costs.LLAMA2_13B_A100_DS,  # SCLS: LLaMA2-13B on an A100 under deepspeed-inference
    "a100-hf": published_costs.LLAMA2_13B_A100_HF,  # the same under huggingface-transformers
    "a6000": published_costs.LLAMA2_7B_A6000,  # BATON: llama2-7b on an A6000 (Table 1)
}
# A quantized model's answers are this many times as long.
ANSWER_GROWTH = {"v100-4bit": published_costs.QUANTIZED_ANSWER_GROWTH}


def machine_of(policy: str, machine: str) -> str:
    """Return the machine on which a policy runs: for VSQ the one with a quantized model, if there is one."""
    quantized = f"{machine}-4bit"
    return quantized if policy == "vsq" and quantized in MACHINES else machine


def request_key(instruction: str, text: str) -> str:
    """Return the key of a request in a file of answers' lengths."""
    return sha256(f"{instruction}\n{text}".encode()).hexdigest()


Answer = Callable[[DecodingRequest], tuple[int, ...]]


@dataclass(eq=False, slots=True)
class PacedRow:
    """A row with its complete answer, of which the first `generated` tokens are generated so far."""

    sequence: DecodingRequest
    answer: tuple[int, ...]
    generated: int

    @property
    def cached(self) -> int:
        """Return the row's tokens in the KV cache: prompt and generated tokens."""
        return len(self.sequence.prompt_ids) + self.generated

    def finished(self, reason: str | None = None) -> FinishedRow:
        """Return the row as finished; without a `reason` it ended at its EOS or at its limit."""
        at_limit = self.generated < len(self.answer)
        return FinishedRow(
            self.sequence.id,
            self.answer[: self.generated],
            reason or ("limit" if at_limit else "eos"),  # type: ignore[arg-type]
        )

    @property
    def ended(self) -> bool:
        """Return whether the row has its last token."""
        return self.generated >= min(len(self.answer), self.sequence.limit)


class PacedEngine:
    """An engine whose rows fill a padded rectangle, as in the papers' engines; only one thread may use it."""

    def __init__(
        self,
        machine: Machine,
        answer: Answer,
        max_positions: int,
        step_log: StepLog | None = None,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
        headroom: float = 0.0,
    ) -> None:
        """`answer` returns a request's right answer with its EOS; `pause` waits for seconds of `clock`.

        `headroom` is the memory beyond Θ that batches may take if predictions are wrong, as a share of Θ.
        """
        self._machine, self._answer, self._clock, self._pause = machine, answer, clock, pause
        self._most_bytes = round((1 + headroom) * machine.memory.theta_bytes)
        self._log = step_log or StepLog()
        self._rows: list[PacedRow] = []
        self._ends_at = 0.0  # the instant at which the current step ends, or the last one ended
        self._figures = RunFigures()
        self.max_positions, self.prefilled_layers = max_positions, 0

    def run(
        self,
        sequences: Sequence[DecodingRequest],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedRow]], None] = lambda finished: None,
    ) -> tuple[list[FinishedRow], RunFigures]:
        """Serve a batch until its last row has finished; finished rows stay in it and cost as much as running ones."""
        batch = [self._row(sequence) for sequence in sequences]
        length = max((row.cached for row in batch), default=0)
        self._reset(length)
        self._rows = list(batch)
        try:
            self._require(len(batch), length + 1)
            self._prefill(batch)
            running = list(batch)
            on_progress([])
            while running and self._figures.iterations != iteration_limit:
                done = self._figures.iterations
                self._require(len(batch), length + done + 1)
                self._decode(len(batch), length + done)
                for row in running:
                    row.generated += 1
                invalid = len(batch) - len(running)
                self._count(valid=len(running), invalid=invalid, kv=len(batch) * (length + done))
                on_progress([row.finished() for row in running if row.ended])  # may remove rows
                running = [row for row in running if not row.ended and row in self._rows]
            ends = [None if row.ended else "unfinished" if row in self._rows else "removed" for row in batch]
            return [*map(PacedRow.finished, batch, ends)], self._figures
        finally:
            self._rows = []

    def insert(self, sequences: Sequence[DecodingRequest]) -> None:
        """Add rows, prefilled in groups of similar length; raises OutOfMemory and adds none if they do not all fit."""
        joiners = [self._row(sequence) for sequence in sequences]
        longest = max(row.cached for row in (*self._rows, *joiners))
        self._require(len(self._rows) + len(joiners), longest + 1)
        if not self._rows:
            self._reset(longest)
        self._rows += joiners
        self._prefill(joiners)

    def step(self) -> list[FinishedRow]:
        """Generate one token for each row, in the time that the machine takes; returns the rows that ended."""
        if self._rows:
            longest = max(row.cached for row in self._rows)
            self._require(len(self._rows), longest + 1)
            self._decode(len(self._rows), longest)
            for row in self._rows:
                row.generated += 1
            self._count(valid=len(self._rows), invalid=0, kv=len(self._rows) * longest)
        ended = [row.finished() for row in self._rows if row.ended]
        self._rows = [row for row in self._rows if not row.ended]
        if not self._rows:
            self._log.pause()
        return ended

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Return the token ids of these rows beyond the given numbers of tokens."""
        return {
            row.sequence.id: Generated(row.answer[since[row.sequence.id] : row.generated], None, row.sequence.stop)
            for row in self._rows
            if row.sequence.id in since
        }

    def remove(self, sequence_id: str) -> FinishedRow | None:
        """Finish a row at once; None if it is not running."""
        row = self._take(sequence_id)
        return None if row is None else row.finished("removed")

    def preempt(self, sequence_id: str) -> DecodingRequest:
        """Remove a row and return it with its tokens, to be resumed; raises KeyError if it is not running."""
        row = self._take(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        return replace(row.sequence, generated_ids=row.answer[: row.generated])

    @property
    def rows(self) -> dict[str, int]:
        """Return the number of generated tokens of each row, by id."""
        return {row.sequence.id: row.generated for row in list(self._rows)}

    @property
    def kv_bytes(self) -> int:
        """Return the bytes that the padded KV cache of the rows would have now."""
        longest = max((row.cached for row in self._rows), default=0)
        return len(self._rows) * longest * self._machine.memory.delta_bytes

    @property
    def figures(self) -> RunFigures:
        """Return the figures of the last `run`, or of the steps since rows were inserted into the empty engine."""
        return self._figures

    def _row(self, sequence: DecodingRequest) -> PacedRow:
        return PacedRow(sequence, self._answer(sequence), len(sequence.generated_ids))

    def _take(self, sequence_id: str) -> PacedRow | None:
        row = next((row for row in self._rows if row.sequence.id == sequence_id and not row.ended), None)
        if row is not None:
            self._rows.remove(row)
        return row

    def _require(self, rows: int, tokens: int) -> None:
        needed = rows * tokens * self._machine.memory.delta_bytes
        if needed > self._most_bytes:
            raise OutOfMemory(needed, self._most_bytes)

    def _prefill(self, rows: Sequence[PacedRow]) -> None:
        """Prefill the rows in groups of similar length; rows are padded in a group if that costs less than another."""
        token_s, _, _, fixed_s = self._machine.curves.prefill
        for indices in groups_by_padding([row.cached for row in rows], round(fixed_s / token_s)):
            group = [rows[index] for index in indices]
            length = max(row.cached for row in group)
            began = perf_counter()
            self._wait(self._machine.curves.prefill_s(len(group), length))
            self._log.count_prefill(len(group), length, began, perf_counter())
            pad = len(group) * length - sum(row.cached for row in group)
            self._figures = replace(self._figures, pad_tokens=self._figures.pad_tokens + pad)

    def _decode(self, rows: int, cached: int) -> None:
        began = perf_counter()
        self._wait(self._machine.curves.decode_step_s(rows, cached))
        self._log.count_decode(rows, cached, began, perf_counter())

    def _wait(self, seconds: float) -> None:
        """Wait until a step of `seconds` has ended; a delay of the host since the last step shortens the wait."""
        now = self._clock()
        late_s = now - self._ends_at
        self._ends_at = (now if late_s > seconds else self._ends_at) + seconds
        self._pause(self._ends_at - now)

    def _reset(self, length: int) -> None:
        self._figures = RunFigures(length=length)

    def _count(self, valid: int, invalid: int, kv: int) -> None:
        before = self._figures
        self._figures = replace(
            before,
            size=max(before.size, valid + invalid),
            iterations=before.iterations + 1,
            generation_length=before.generation_length + 1,
            valid_tokens=before.valid_tokens + valid,
            invalid_tokens=before.invalid_tokens + invalid,
            peak_kv_bytes=max(before.peak_kv_bytes, kv * self._machine.memory.delta_bytes),
        )
