"""An engine over HTTP: the rows run in a server, one connection each, behind the interface of our own engine.

The engine's thread calls `insert`, `step` and `remove`; the connections live in an event loop of a thread of its own.
Nothing here loads a model, or torch.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from threading import Event, Thread
from time import monotonic

import httpx

from inference.answer_text import Detokenizer
from inference.remote.remote_row import RemoteRow
from inference.remote.row_stream import EndableTask, StreamListener, StreamTerms, serve_row
from inference.remote.server_capabilities import ProbedServer
from inference.remote.server_watch import ServerWatch
from inference.remote.stream_figures import StreamFigures
from inference.sequences import FinishedSequence, Generated, RunFigures, Sequence
from scheduling.request import lacking

# Longest time that a step waits for a row to end; cancels and joiners are handled between two steps.
STEP_S = 0.02
# Longest time until a connection is made, or until the connections are closed.
CONNECT_WITHIN_S = 5.0
# A row counts as a suspect after this many losses of the server while it ran there. Not tuned.
MOST_LOSSES = 3
MOST_REMEMBERED = 10_000  # rows whose losses are remembered

Progress = Callable[[list[FinishedSequence]], None]


class ServerLostOften(Exception):
    """The server was lost several times while it ran the same rows: one of them may be the cause."""


class RemoteEngine:
    """Runs many rows in one server; a row without a token for `silent_s` seconds is taken back.

    `detokenizer` finds stop strings that began before a row was resumed.
    """

    def __init__(self, server: ProbedServer, detokenizer: Detokenizer | None = None, silent_s: float = 60.0) -> None:
        self.server = server
        self._rows: dict[str, RemoteRow] = {}
        self._tasks: dict[str, EndableTask] = {}
        self._ended: deque[RemoteRow] = deque()
        self._changed = Event()
        self._terms = StreamTerms(silent_s, detokenizer)
        self._losses: dict[str, int] = {}
        self._unforeseen: Exception | None = None
        self._figures = StreamFigures()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=f"streams of {server.url}", daemon=True)
        self._thread.start()
        self._client = httpx.AsyncClient(
            base_url=server.url,
            headers=server.headers,
            timeout=httpx.Timeout(CONNECT_WITHIN_S, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self.watch = ServerWatch(server, self._client, self._terms)
        self._watching = EndableTask(self.watch.run(self._streaming), self._loop)
        self._listener = StreamListener(
            ended=self._row_ended,
            lost=self.watch.suspect,
            busy=self.watch.refused,
            garbage=self.watch.set_aside,
            usable=lambda: self.watch.offer.fault is None,
        )

    @property
    def max_positions(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self.server.max_positions or sys.maxsize

    @property
    def rows(self) -> dict[str, int]:
        """Generated tokens of each row that is running, or that ended and was not yet returned by `step`."""
        return {row_id: row.tokens for row_id, row in list(self._rows.items())}

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns, by row id, each running row's tokens after its first `since[id]`, or all its text."""
        rows = [(row_id, row) for row_id, row in list(self._rows.items()) if row_id in since]
        return {row_id: row.generated(since[row_id]) for row_id, row in rows}

    @property
    def kv_bytes(self) -> int:
        """Tokens of all rows: a server's memory is counted in tokens, each as one byte."""
        return sum(len(row.sequence.prompt_ids) + row.tokens for row in list(self._rows.values()))

    @property
    def figures(self) -> RunFigures:
        """The figures of the last `run`, or of everything since rows were inserted into an empty engine."""
        return self._figures.figures()

    def run(
        self,
        sequences: Several[Sequence],
        iteration_limit: int | None = None,
        on_progress: Progress = lambda finished: None,
    ) -> tuple[list[FinishedSequence], RunFigures]:
        """Serves a batch until every row ended or has `iteration_limit` more tokens; returns them in the order given.

        A server that takes no token ids serves its rows to their ends. `on_progress` may read `rows` and call `remove`.
        """
        if self._rows:
            raise ValueError(f"{len(self._rows)} rows are still running")
        results: dict[str, FinishedSequence] = {}
        self._insert(sequences, iteration_limit)
        while self._rows:
            ended = self.step()
            results.update((row.id, row) for row in ended)
            on_progress(ended)
        removed = (FinishedSequence(one.id, one.generated_ids, "removed") for one in sequences)
        return [results.get(row.id, row) for row in removed], self.figures

    def insert(self, sequences: Several[Sequence]) -> None:
        """Lets rows join; rows that a full server refuses wait here. Raises ValueError for a row that runs already."""
        self._insert(sequences, None)

    def step(self) -> list[FinishedSequence]:
        """Waits for a row to end, at most STEP_S; returns the rows that ended since the last step.

        Raises ServerLostOften, and any unexpected error of a stream.
        """
        self._changed.wait(STEP_S)
        self._changed.clear()
        ended = []
        while self._ended:
            row = self._ended.popleft()
            if self._rows.get(row.sequence.id) is row:
                ended.append(row)
        self._figures.count(list(self._rows.values()), monotonic())
        for row in ended:
            del self._rows[row.sequence.id]
            self._tasks.pop(row.sequence.id, None)  # a refused row never had one
        if self._unforeseen is not None:
            raise self._unforeseen
        suspects = [row.sequence.id for row in ended if self._losses.get(row.sequence.id, 0) >= MOST_LOSSES]
        if suspects:
            raise ServerLostOften(f"{self.server.url} was lost {MOST_LOSSES} times with the same rows")
        return [row.result() for row in ended]

    def remove(self, sequence_id: str) -> FinishedSequence | None:
        """Closes a row's connection, which ends it in the server; returns None if the row is not running."""
        row = self._take_out(sequence_id)
        return None if row is None else row.result("removed")

    def preempt(self, sequence_id: str) -> Sequence:
        """Takes a row out and returns the sequence that resumes or restarts it; KeyError if it is not running."""
        row = self._take_out(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        return row.rest()

    def close(self) -> None:
        """Ends every row and the thread of the connections."""
        for row_id in list(self._rows):
            self._take_out(row_id)
        for task in (*self._tasks.values(), self._watching):  # a row that has ended may still have a stream
            task.end()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CONNECT_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def _insert(self, sequences: Several[Sequence], iteration_limit: int | None) -> None:
        for sequence in sequences:
            if sequence.id in self._rows:
                raise ValueError(f"sequence {sequence.id} is running already")
        if not self._rows:
            self._figures = StreamFigures()
        for sequence in sequences:
            self._rows[sequence.id] = row = self._new_row(sequence, iteration_limit)
            refusal = self.refusal(sequence)
            if refusal is not None:
                row.end("refused", refusal)
                self._row_ended(row)
                continue
            self._tasks[sequence.id] = EndableTask(self._serve(row), self._loop)

    def refusal(self, sequence: Sequence) -> str | None:
        """Why the server cannot serve this row; None if it can."""
        needs = sequence.sampling.needs if sequence.turns else (*sequence.sampling.needs, "raw_prompt")
        lacked = lacking(needs, self.server.capabilities.lacks)
        return f"{self.server.kind} at this address lacks {' and '.join(lacked)}" if lacked else None

    def _new_row(self, sequence: Sequence, iteration_limit: int | None) -> RemoteRow:
        able = self.server.capabilities
        limit = sequence.limit
        if self.server.max_positions is not None:
            limit = min(limit, max(1, self.server.max_positions - len(sequence.prompt_ids)))
        # A server applies a format only to tokens of one request, and restarts a seed's numbers with each request, so
        # such answers must come in one piece.
        seeded = sequence.sampling.seed is not None and not sequence.sampling.greedy
        resumes = able.resumes and sequence.format is None and not seeded
        lacks_logprobs = sequence.top_logprobs is not None and len(sequence.logprobs) < len(sequence.generated_ids)
        if not resumes or lacks_logprobs:
            sequence = replace(sequence, generated_ids=(), logprobs=())
        until = limit
        if iteration_limit is not None and resumes:
            until = min(limit, len(sequence.generated_ids) + iteration_limit)
        return RemoteRow(
            sequence,
            limit=limit,
            until=until,
            by_ids=able.token_ids_out,
            resumes=resumes,
            inserted_at=monotonic(),
            ids=list(sequence.generated_ids),
            logprobs=list(sequence.logprobs),
            accounted=len(sequence.generated_ids),
        )

    def _take_out(self, sequence_id: str) -> RemoteRow | None:
        row = self._rows.get(sequence_id)
        if row is None or not row.take_out():
            return None
        self._figures.count([row], monotonic())
        del self._rows[sequence_id]
        self._tasks.pop(sequence_id).end()
        return row

    def _streaming(self) -> list[RemoteRow]:
        """The rows, for the watch."""
        return list(self._rows.values())

    # in the event loop's thread

    async def _serve(self, row: RemoteRow) -> None:
        try:
            await serve_row(self._client, self.server, row, self._listener, self._terms)
        except Exception as error:  # the engine's thread must see the error, or the row would run for ever
            self._unforeseen = error
            self._changed.set()

    def _row_ended(self, row: RemoteRow) -> None:
        before = self._losses.pop(row.sequence.id, 0)
        if row.reason == "unfinished" and row.lost:
            if len(self._losses) >= MOST_REMEMBERED:
                self._losses.pop(next(iter(self._losses)))
            self._losses[row.sequence.id] = before + 1
        self._ended.append(row)
        self._changed.set()
