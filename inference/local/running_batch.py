"""The decode loop's body: `prefill` -> `sample` -> `retire` for rows that enter, `decode_one_token` -> `sample` ->
`retire` for all that run. It decides nothing about who enters or leaves; that is the engine's."""

from collections.abc import Sequence
from time import perf_counter

from torch import Tensor

from inference.local.batch_rows import BatchRow
from inference.local.forward_pass import Cursor, decode_one_token, prefill
from inference.local.kv_cache import KvCache
from inference.local.model_loading import LoadedModel
from inference.local.run_tally import RunTally
from inference.local.sampling import draw, greedy
from inference.sequences import FinishedSequence


class RunningBatch:
    """Rows in their places in the KV cache; an ended row keeps its place until somebody takes it."""

    def __init__(self, loaded: LoadedModel, kv: KvCache) -> None:
        self.loaded, self.kv = loaded, kv
        self.rows: list[BatchRow] = []  # row i of the cache
        self.tally = RunTally()
        self.ended: list[FinishedSequence] = []  # not taken yet
        self._cursor: Cursor | None = None  # None: a row came, ended or moved

    def prefill(self, rows: Sequence[BatchRow], places: Sequence[int]) -> None:
        """Rows take their places in the batch and get a token."""
        started = perf_counter()
        prompts = [row.token_ids for row in rows]
        self.make_room(max(places) + 1, max(map(len, prompts)))
        logits = prefill(self.loaded.decoder, self.kv, places, prompts, self.loaded.pad_id)
        self.seat(rows, places)
        self._retire(rows, self._sample(logits, rows))
        self.tally.prefilled([len(prompt) for prompt in prompts], perf_counter() - started)

    def decode(self) -> None:
        """Every row gets a token."""
        started = perf_counter()
        cursor = self._aim()
        logits = decode_one_token(self.loaded.decoder, self.kv, cursor)
        cursor.tokens = self._sample(logits, self.rows)[:, None]
        running = self._retire(self.rows, cursor.tokens[:, 0])
        self.tally.decoded(len(self.rows), running, perf_counter() - started)

    def _aim(self) -> Cursor:
        """Where each row stands, with room in the cache for one token more."""
        self.make_room(len(self.rows), self.width + 1)
        if self._cursor is None:
            self._cursor = Cursor.at(
                self.kv,
                tokens=[row.generated[-1] for row in self.rows],
                positions=[row.cached for row in self.rows],
                running=[row.ended is None for row in self.rows],
            )
        return self._cursor

    def _sample(self, logits: Tensor, rows: Sequence[BatchRow]) -> Tensor:
        """The next token of each row, [rows]."""
        tokens = greedy(logits)
        chosen = [index for index, row in enumerate(rows) if row.chances and row.ended is None]
        if chosen:
            drawing = [rows[index] for index in chosen]
            chances = [row.chances[len(row.generated)] for row in drawing]
            tokens[chosen] = draw(logits[chosen], [row.sequence.sampling for row in drawing], chances)
        return tokens

    def _retire(self, rows: Sequence[BatchRow], tokens: Tensor) -> int:
        """Give each running row its token, collect those that ended, and return how many were running."""
        running = 0
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row.ended is None:
                running += 1
                if row.accept(token, self.loaded.eos_ids, self.loaded.tokenizer):
                    self.ended.append(row.result())
                    self.tally.longest = max(self.tally.longest, row.gained)
                    self._cursor = None
        return running

    @property
    def width(self) -> int:
        """Columns of the cache that the longest row fills."""
        return self._cursor.width if self._cursor else max((row.cached for row in self.rows), default=0)

    def make_room(self, rows: int, columns: int) -> None:
        """Let the cache have so many rows and columns; BudgetExceeded, and nothing changed, if it cannot."""
        kept = len(self.rows), self.width
        if self.kv.reserve(max(rows, kept[0]), max(columns, kept[1]), kept):
            self._cursor = None
        self.tally.held(self.kv.nbytes)

    def seat(self, rows: Sequence[BatchRow], places: Sequence[int]) -> None:
        """Give places, those of ended rows or new ones behind the last, to rows that the cache holds."""
        for row, place in zip(rows, places, strict=True):
            self.rows[place : place + 1] = [row]
        self._cursor = None

    def take_ended(self) -> list[FinishedSequence]:
        """The rows that ended by themselves since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def clear(self) -> None:
        """Start afresh, with no row and new figures."""
        self.rows, self._cursor, self.tally = [], None, RunTally()

    def end(self, row: BatchRow) -> None:
        """End a row from outside; its place waits to be taken."""
        row.ended, self._cursor = "removed", None

    def close_gaps(self) -> None:
        """Give the places of ended rows to the last ones, and memory back that is no longer needed."""
        for row in [row for row in reversed(self.rows) if row.ended is not None]:
            self.vacate(row)
        if self.kv.trim(len(self.rows), self.width + 1):
            self._cursor = None

    def vacate(self, row: BatchRow) -> None:
        """Give a row's place to the last row."""
        place, last = self.rows.index(row), self.rows.pop()
        if last is not row:
            self.kv.copy_row(len(self.rows), place, last.cached)
            self.rows[place] = last
        self._cursor = None

    def give_up_cache(self) -> list[BatchRow]:
        """Free the cache and return the rows that were running in it."""
        self.kv.release()
        rows, self.rows, self._cursor = self.rows, [], None
        return [row for row in rows if row.ended is None]
