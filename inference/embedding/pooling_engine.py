"""Computes the vectors or scores of rows of texts; each forward pass encodes texts of similar length.

A row ends once all its texts are encoded. Texts of one row and of different rows share forward passes, which have a
bounded number of tokens. Rows take turns at being the first of a pass; while there are interactive rows, only these
take turns. So a short row waits neither for a long row nor for background work.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from inference.embedding.vectors import Vectors, cosines, packed
from inference.engine_errors import OutOfMemory
from inference.engine_requests import EngineRequest, FinishedRow, FinishReason, Generated, PoolingRequest, RunFigures
from inference.remote.server_errors import RowRefused, ServerFailed, ServerLost
from inference.serving_engine import run_to_the_end
from scheduling.request import BACKGROUND_TIERS

# Encodes texts, or pairs of texts, together; returns the array (texts, values). Raises OutOfMemory, and if a server
# does the encoding also ServerLost, ServerFailed or RowRefused.
Encode = Callable[[list[Any]], Vectors]

# A pass chooses texts of similar length among this many waiting texts. A larger number would pad passes less, but
# choosing would take longer; with this number it takes about a millisecond. Not tuned otherwise.
WINDOW = 1024
# Texts share a pass if their lengths differ by at most this share plus some tokens: short texts cost about the same.
SIMILAR, SIMILAR_TOKENS = 0.25, 8
NOT_POOLED = "this worker computes vectors and scores of texts, and generates no answers"


@dataclass(eq=False, slots=True)
class _TextRow:
    """A row: `items` are its texts or pairs of texts, `waiting` has the numbers of those without `values` so far."""

    sequence: PoolingRequest
    items: list[Any]
    tokens: tuple[int, ...]
    values: list[Any]
    waiting: list[int]


class PoolingEngine:
    """Serves rows of texts on one model, as a ServingEngine."""

    max_positions = sys.maxsize  # each text was checked against the model's bound when it came
    prefilled_layers = 0  # no pass is so long that its progress must be shown

    def __init__(self, encode: Encode, scores_pairs: bool, pass_tokens: int) -> None:
        """A pass has at most `pass_tokens` tokens, padding included; a longer item has a pass of its own."""
        self._encode, self._scores_pairs, self._pass_tokens = encode, scores_pairs, pass_tokens
        self._rows: dict[str, _TextRow] = {}
        # for interactive rows (False) and background work (True): the rows in the order of their turns
        self._turns: dict[bool, deque[_TextRow]] = {False: deque(), True: deque()}
        self._ended: list[FinishedRow] = []
        self._held_tokens = 0
        self.figures = RunFigures()  # the figures of everything since the engine was last empty

    @property
    def rows(self) -> dict[str, int]:
        """Returns 0 for each row, because no row generates tokens."""
        return dict.fromkeys(list(self._rows), 0)

    @property
    def kv_bytes(self) -> int:
        """Returns the tokens of all rows: this engine counts its memory as one byte for each token."""
        return self._held_tokens

    def run(
        self,
        sequences: Sequence[EngineRequest],
        iteration_limit: int | None = None,
        on_progress: Callable[[list[FinishedRow]], None] = lambda finished: None,
    ) -> tuple[list[FinishedRow], RunFigures]:
        """Serves a batch to its end, ignoring `iteration_limit`; refuses rows that want tokens, after a trial pass."""
        if not all(isinstance(one, PoolingRequest) for one in sequences):
            with suppress(ServerLost):  # nothing else to do: a worker gets no work while its server is lost
                self._encode([(".", ".") if self._scores_pairs else "."])
        self.insert(sequences)
        return run_to_the_end(self, sequences, on_progress)

    def insert(self, sequences: Sequence[EngineRequest]) -> None:
        """Adds rows, and refuses rows that want tokens. Raises ValueError for a row that runs already."""
        for sequence in sequences:
            if sequence.id in self._rows:
                raise ValueError(f"sequence {sequence.id} is running already")
        figures = self.figures if self._rows else RunFigures()
        for sequence in sequences:
            items = items_of(sequence, self._scores_pairs) if isinstance(sequence, PoolingRequest) else []
            if not isinstance(sequence, PoolingRequest) or len(items) != len(sequence.pooling.tokens):
                self._ended.append(FinishedRow(sequence.id, (), "refused", refusal=NOT_POOLED))
                continue
            row = _TextRow(sequence, items, sequence.pooling.tokens, [None] * len(items), list(range(len(items))))
            self._rows[sequence.id] = row
            self._turns[sequence.tier in BACKGROUND_TIERS].append(row)
            self._held_tokens += sequence.length
            figures = replace(figures, length=max(figures.length, sequence.length))
        size, peak = max(figures.size, len(self._rows)), max(figures.peak_kv_bytes, self._held_tokens)
        self.figures = replace(figures, size=size, peak_kv_bytes=peak)

    def step(self) -> list[FinishedRow]:
        """Computes one pass; returns rows that ended, all as `unfinished` if the server is lost. Raises OutOfMemory."""
        turns = self._turns[False] or self._turns[True]
        window = list(islice(((row, number) for row in turns for number in row.waiting), WINDOW))
        chosen: list[tuple[_TextRow, int]] = []
        ended, self._ended = self._ended, []
        try:
            while window and not (chosen := self._encoded(window)):
                self._pass_tokens //= 2  # a pass of this many tokens did not fit in the device's memory
        except ServerLost:
            ended += [self._end(row, "unfinished") for row in list(self._rows.values())]
        except RowRefused as error:
            ended.append(self._end(window[0][0], "refused", str(error)))
        except ServerFailed as error:
            ended.append(self._end(window[0][0], "failed", str(error)))
        if window:
            turns.rotate(-1)
            for row in dict.fromkeys(row for row, _ in chosen):
                numbers = {number for other, number in chosen if other is row}
                row.waiting = [number for number in row.waiting if number not in numbers]
                if not row.waiting:
                    self._take_out(row)
                    answer = answer_of(row.sequence, row.values)
                    ended.append(FinishedRow(row.sequence.id, (), "eos", text=answer))
        return ended

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns nothing, because no row generates tokens."""
        return {}

    def remove(self, sequence_id: str) -> FinishedRow | None:
        """Ends a row without an answer."""
        row = self._rows.get(sequence_id)
        if row is None:
            return None
        self._take_out(row)
        return FinishedRow(sequence_id, (), "removed", text="")

    def preempt(self, sequence_id: str) -> PoolingRequest:
        """Takes a row out; it begins anew once it is inserted again. Raises KeyError if the row does not run."""
        sequence = self._rows[sequence_id].sequence
        self.remove(sequence_id)
        return sequence

    def _encoded(self, window: Sequence[tuple[_TextRow, int]]) -> list[tuple[_TextRow, int]]:
        """Encodes the window's first item and items of similar length; returns them; [] if a shorter pass may fit."""
        chosen = [window[one] for one in choose([row.tokens[number] for row, number in window], self._pass_tokens)]
        try:
            values = self._encode([row.items[number] for row, number in chosen])
            if not np.isfinite(values).all():
                raise ServerFailed("its values are no numbers")
        except OutOfMemory:
            if len(chosen) == 1:
                raise
            return []
        except (RowRefused, ServerFailed):  # encoding the first row alone shows whether that row is the cause
            of_first = [one for one in chosen if one[0] is chosen[0][0]]
            if len(of_first) == len(chosen):
                raise
            return self._encoded(of_first)
        for (row, number), value in zip(chosen, values, strict=True):
            row.values[number] = value
        tokens, before = [row.tokens[number] for row, number in chosen], self.figures
        padding = len(tokens) * max(tokens) - sum(tokens)
        self.figures = replace(before, iterations=before.iterations + 1, pad_tokens=before.pad_tokens + padding)
        return chosen

    def _end(self, row: _TextRow, reason: FinishReason, refusal: str = "") -> FinishedRow:
        self._take_out(row)
        return FinishedRow(row.sequence.id, (), reason, refusal=refusal)

    def _take_out(self, row: _TextRow) -> None:
        del self._rows[row.sequence.id]
        self._turns[row.sequence.tier in BACKGROUND_TIERS].remove(row)
        self._held_tokens -= row.sequence.length


def items_of(sequence: PoolingRequest, scores_pairs: bool) -> list[Any]:
    """Returns the model's inputs of a row: its texts, or its pairs of a query and a document."""
    if not scores_pairs:
        return list(sequence.texts)
    queries, documents = sequence.texts[: sequence.pooling.queries], sequence.texts[sequence.pooling.queries :]
    return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=False))


def answer_of(sequence: PoolingRequest, values: Sequence[Any]) -> str:
    """Returns a row's answer: its vectors, or each document's score, a cosine unless a cross-encoder computed it."""
    computed = np.asarray(values, np.float32)
    queries = sequence.pooling.queries
    return packed(cosines(computed[:queries], computed[queries:]) if queries and computed.ndim == 2 else computed)


def choose(tokens: Sequence[int], most_tokens: int) -> list[int]:
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
