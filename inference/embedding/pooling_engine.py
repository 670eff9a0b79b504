"""The engine of a worker that computes vectors or scores: rows of texts, encoded together with texts of similar length.

A row ends once all its texts are encoded. Texts of one row and of different rows share forward passes, which have a
bounded number of tokens, so that an interactive row waits for one short pass and not for a batch of others.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inference.embedding.vectors import Vectors, cosines, packed
from inference.engine_errors import OutOfMemory
from inference.sequences import FinishedSequence, Generated, RunFigures, Sequence
from scheduling.request import is_background

# Encodes texts, or pairs of texts, together: (texts, values). Raises OutOfMemory.
Encode = Callable[[list[Any]], Vectors]

# Texts that wait longest, among which those of similar length are chosen. With more of them passes are padded less, and
# choosing takes longer, 0.3 ms with this many. Not tuned otherwise.
WINDOW = 1024
# Texts share a pass if their lengths differ by at most this share, and some tokens: short texts cost about the same.
SIMILAR, SIMILAR_TOKENS = 0.25, 8
NOT_POOLED = "this worker computes vectors and scores of texts, and generates no answers"


@dataclass(eq=False, slots=True)
class _TextRow:
    """A row with the values of its items so far; an item is what the model reads: a text, or a pair of texts."""

    sequence: Sequence
    items: list[Any]
    values: list[Vectors | None] = field(default_factory=list)
    missing: int = 0


@dataclass(frozen=True, slots=True)
class _Item:
    row: _TextRow
    number: int
    tokens: int


class PoolingEngine:
    """Serves rows of texts on one model; `run`, and `insert` with `step`, are as every engine has them."""

    max_positions = sys.maxsize  # each text was checked against the model's bound when it came

    def __init__(self, encode: Encode, scores_pairs: bool, pass_tokens: int) -> None:
        """A pass has at most `pass_tokens` tokens, padding included, or one item."""
        self._encode, self._scores_pairs, self._pass_tokens = encode, scores_pairs, pass_tokens
        self._rows: dict[str, _TextRow] = {}
        self._waiting: dict[bool, list[_Item]] = {False: [], True: []}  # by whether the row is background work
        self._ended: list[FinishedSequence] = []
        self._forget_figures()

    @property
    def rows(self) -> dict[str, int]:
        """No row generates a token."""
        return dict.fromkeys(list(self._rows), 0)

    @property
    def kv_bytes(self) -> int:
        """The tokens of all rows: the memory of this engine is counted in tokens of one byte."""
        return sum(row.sequence.length for row in list(self._rows.values()))

    @property
    def figures(self) -> RunFigures:
        """The figures since rows were inserted into an empty engine."""
        return RunFigures(
            size=self._size,
            length=self._length,
            iterations=self._passes,
            generation_length=0,
            valid_tokens=0,
            pad_tokens=self._pad_tokens,
            invalid_tokens=0,
            peak_kv_bytes=self._peak_bytes,
            prefill_s=0.0,
            decode_s=0.0,
        )

    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedSequence]], None] = lambda finished: None,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serves a batch to its end; `iteration_limit` is for rows that generate.

        A row that wants tokens is the trial of a new engine: the device computes something before the row is refused.
        """
        if any(one.pooling is None for one in sequences):
            self._encode([(".", ".") if self._scores_pairs else "."])
        results: dict[str, FinishedSequence] = {}
        self.insert(sequences)
        while self._rows or self._ended:
            ended = self.step()
            results.update((row.id, row) for row in ended)
            on_progress(ended)
        return [results.get(one.id, FinishedSequence(one.id, (), "removed")) for one in sequences], self.figures

    def insert(self, sequences: Several[Sequence]) -> None:
        """Adds rows; one that wants tokens is refused. Raises ValueError for a row that runs already."""
        for sequence in sequences:
            if sequence.id in self._rows:
                raise ValueError(f"sequence {sequence.id} is running already")
        if not self._rows:
            self._forget_figures()
        for sequence in sequences:
            items = items_of(sequence, self._scores_pairs)
            if sequence.pooling is None or len(items) != len(sequence.pooling.tokens):
                self._ended.append(FinishedSequence(sequence.id, (), "refused", refusal=NOT_POOLED))
                continue
            row = _TextRow(sequence, items, [None] * len(items), len(items))
            self._rows[sequence.id] = row
            waiting = self._waiting[is_background(sequence.priority)]
            waiting += (_Item(row, number, tokens) for number, tokens in enumerate(sequence.pooling.tokens))
            self._size = max(self._size, len(self._rows))
            self._length = max(self._length, sequence.length)
        self._peak_bytes = max(self._peak_bytes, self.kv_bytes)

    def step(self) -> list[FinishedSequence]:
        """Computes one pass; returns the rows that finished since the last step. Raises OutOfMemory.

        Texts of interactive rows go first, with none of background rows beside them.
        """
        ended, self._ended = self._ended, []
        waiting = self._waiting[False] or self._waiting[True]
        window = waiting[:WINDOW]
        while window and not (chosen := self._encoded(window)):
            self._pass_tokens //= 2  # this much fills the device's memory
        if window:
            waiting[:WINDOW] = [item for number, item in enumerate(window) if number not in chosen]
            ended += self._finished(window[number].row for number in chosen)
        return ended

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns nothing, because no row generates tokens."""
        return {}

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Ends a row without an answer."""
        row = self._rows.pop(sequence_id, None)
        if row is None:
            return None
        waiting = self._waiting[is_background(row.sequence.priority)]
        waiting[:] = [item for item in waiting if item.row is not row]
        return FinishedSequence(sequence_id, (), "removed", text="")

    def preempt(self, sequence_id: str) -> Sequence:
        """Takes a row out; it begins anew where it is inserted again. Raises KeyError if the row does not run."""
        sequence = self._rows[sequence_id].sequence
        self.remove(sequence_id)
        return sequence

    def _encoded(self, window: Several[_Item]) -> list[int]:
        """Encodes the first item and those like it; returns their numbers, or none if a shorter pass may fit."""
        chosen = choose([item.tokens for item in window], self._pass_tokens)
        items = [window[number] for number in chosen]
        try:
            values = self._encode([item.row.items[item.number] for item in items])
        except OutOfMemory:
            if len(chosen) == 1:
                raise
            return []
        for item, value in zip(items, values, strict=True):
            item.row.values[item.number] = value
            item.row.missing -= 1
        self._passes += 1
        tokens = [item.tokens for item in items]
        self._pad_tokens += len(tokens) * max(tokens) - sum(tokens)
        return chosen

    def _finished(self, rows: Iterable[_TextRow]) -> list[FinishedSequence]:
        done = [row for row in dict.fromkeys(rows) if not row.missing]
        for row in done:
            del self._rows[row.sequence.id]
        return [FinishedSequence(row.sequence.id, (), "eos", text=answer_of(row.sequence, row.values)) for row in done]

    def _forget_figures(self) -> None:
        self._size = self._length = self._passes = self._pad_tokens = self._peak_bytes = 0


def items_of(sequence: Sequence, scores_pairs: bool) -> list[Any]:
    """Returns what the model reads of a row: its texts, or its pairs of a query and a document."""
    if not scores_pairs or sequence.pooling is None:
        return list(sequence.texts)
    queries, documents = sequence.texts[: sequence.pooling.queries], sequence.texts[sequence.pooling.queries :]
    return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=False))


def answer_of(sequence: Sequence, values: Several[Any]) -> str:
    """Returns a row's answer: its vectors, or a score of each document, which without a cross-encoder is a cosine."""
    computed = np.asarray(values, np.float32)
    queries = 0 if sequence.pooling is None else sequence.pooling.queries
    return packed(cosines(computed[:queries], computed[queries:]) if queries and computed.ndim == 2 else computed)


def choose(tokens: Several[int], most_tokens: int) -> list[int]:
    """Returns the numbers of the items of one pass: the first, and those whose lengths are most like its length."""
    chosen, longest, first = list[int](), 0, tokens[0]
    for number in sorted(range(len(tokens)), key=lambda one: abs(tokens[one] - first)):
        longest = max(longest, tokens[number])
        if chosen and (
            (len(chosen) + 1) * longest > most_tokens or abs(tokens[number] - first) > SIMILAR_TOKENS + SIMILAR * first
        ):
            break
        chosen.append(number)
    return chosen
