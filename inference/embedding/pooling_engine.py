"""The engine of a worker that computes vectors or scores: rows of texts, encoded together with texts of similar length.

A row ends once all its texts are encoded. Texts of one row and of different rows share forward passes, which have a
bounded number of tokens. Rows take turns at being the first of a pass, and interactive ones have all turns while there
are any: so a short row waits neither for a long one nor for a batch.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from inference.embedding.vectors import Vectors, cosines, packed
from inference.engine_errors import OutOfMemory
from inference.remote.server_errors import RowRefused, ServerLost
from inference.sequences import FinishedSequence, FinishReason, Generated, RunFigures, Sequence
from scheduling.request import is_background

# Encodes texts, or pairs of texts, together: (texts, values). Raises OutOfMemory, and ServerLost or RowRefused if a
# server does it.
Encode = Callable[[list[Any]], Vectors]

# Waiting texts among which those of similar length are chosen. With more of them passes are padded less, and choosing
# takes longer, about a millisecond with this many. Not tuned otherwise.
WINDOW = 1024
# Texts share a pass if their lengths differ by at most this share, and some tokens: short texts cost about the same.
SIMILAR, SIMILAR_TOKENS = 0.25, 8
NOT_POOLED = "this worker computes vectors and scores of texts, and generates no answers"


@dataclass(eq=False, slots=True)
class _TextRow:
    """A row with the model's inputs, texts or pairs of texts, their values so far, and which of them still wait."""

    sequence: Sequence
    items: list[Any]
    tokens: tuple[int, ...]
    values: list[Any]
    waiting: list[int]


class PoolingEngine:
    """Serves rows of texts on one model; `run`, and `insert` with `step`, are as every engine has them."""

    max_positions = sys.maxsize  # each text was checked against the model's bound when it came

    def __init__(self, encode: Encode, scores_pairs: bool, pass_tokens: int) -> None:
        """A pass has at most `pass_tokens` tokens, padding included, or one item."""
        self._encode, self._scores_pairs, self._pass_tokens = encode, scores_pairs, pass_tokens
        self._rows: dict[str, _TextRow] = {}
        # rows in the order of their turns, by whether they are background work
        self._turns: dict[bool, deque[_TextRow]] = {False: deque(), True: deque()}
        self._ended: list[FinishedSequence] = []
        self._held_tokens = 0
        self._size = self._length = self._passes = self._pad_tokens = self._peak_bytes = 0

    @property
    def rows(self) -> dict[str, int]:
        """No row generates a token."""
        return dict.fromkeys(list(self._rows), 0)

    @property
    def kv_bytes(self) -> int:
        """The tokens of all rows: the memory of this engine is counted in tokens of one byte."""
        return self._held_tokens

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
        """Serves a batch to its end, without `iteration_limit`; refuses rows that want tokens, after a trial pass."""
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
            row = _TextRow(sequence, items, sequence.pooling.tokens, [None] * len(items), list(range(len(items))))
            self._rows[sequence.id] = row
            self._turns[is_background(sequence.priority)].append(row)
            length = sequence.length
            self._held_tokens += length
            self._length = max(self._length, length)
        self._size = max(self._size, len(self._rows))
        self._peak_bytes = max(self._peak_bytes, self._held_tokens)

    def step(self) -> list[FinishedSequence]:
        """Computes one pass; returns the rows that finished, `unfinished` if the server is lost. Raises OutOfMemory."""
        turns = self._turns[False] or self._turns[True]
        window = list(islice(((row, number) for row in turns for number in row.waiting), WINDOW))
        chosen: list[tuple[_TextRow, int]] = []
        ended, self._ended = self._ended, []
        try:
            while window and not (chosen := self._encoded(window)):
                self._pass_tokens //= 2  # this much fills the device's memory
        except ServerLost:
            ended += [self._end(row, "unfinished") for row in list(self._rows.values())]
        except RowRefused as error:
            ended.append(self._end(window[0][0], "refused", str(error)))
        if window:
            turns.rotate(-1)
            for row in dict.fromkeys(row for row, _ in chosen):
                numbers = {number for other, number in chosen if other is row}
                row.waiting = [number for number in row.waiting if number not in numbers]
                if not row.waiting:
                    self._take_out(row)
                    answer = answer_of(row.sequence, row.values)
                    ended.append(FinishedSequence(row.sequence.id, (), "eos", text=answer))
        return ended

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns nothing, because no row generates tokens."""
        return {}

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Ends a row without an answer."""
        row = self._rows.get(sequence_id)
        if row is None:
            return None
        self._take_out(row)
        return FinishedSequence(sequence_id, (), "removed", text="")

    def preempt(self, sequence_id: str) -> Sequence:
        """Takes a row out; it begins anew where it is inserted again. Raises KeyError if the row does not run."""
        sequence = self._rows[sequence_id].sequence
        self.remove(sequence_id)
        return sequence

    def _encoded(self, window: Several[tuple[_TextRow, int]]) -> list[tuple[_TextRow, int]]:
        """Encodes the first text and those like it; returns them, or none if a shorter pass may fit."""
        chosen = [window[one] for one in choose([row.tokens[number] for row, number in window], self._pass_tokens)]
        try:
            values = self._encode([row.items[number] for row, number in chosen])
        except OutOfMemory:
            if len(chosen) == 1:
                raise
            return []
        except RowRefused:  # the first row alone shows whether it is the cause
            of_first = [one for one in chosen if one[0] is chosen[0][0]]
            if len(of_first) == len(chosen):
                raise
            return self._encoded(of_first)
        for (row, number), value in zip(chosen, values, strict=True):
            row.values[number] = value
        self._passes += 1
        tokens = [row.tokens[number] for row, number in chosen]
        self._pad_tokens += len(tokens) * max(tokens) - sum(tokens)
        return chosen

    def _end(self, row: _TextRow, reason: FinishReason, refusal: str = "") -> FinishedSequence:
        self._take_out(row)
        return FinishedSequence(row.sequence.id, (), reason, refusal=refusal)

    def _take_out(self, row: _TextRow) -> None:
        del self._rows[row.sequence.id]
        self._turns[is_background(row.sequence.priority)].remove(row)
        self._held_tokens -= row.sequence.length

    def _forget_figures(self) -> None:
        self._size = self._length = self._passes = self._pad_tokens = self._peak_bytes = 0


def items_of(sequence: Sequence, scores_pairs: bool) -> list[Any]:
    """Returns the model's inputs of a row: its texts, or its pairs of a query and a document."""
    if not scores_pairs or sequence.pooling is None:
        return list(sequence.texts)
    queries, documents = sequence.texts[: sequence.pooling.queries], sequence.texts[sequence.pooling.queries :]
    return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=False))


def answer_of(sequence: Sequence, values: Several[Any]) -> str:
    """Returns a row's answer: its vectors, or each document's score, a cosine unless a cross-encoder computed it."""
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
