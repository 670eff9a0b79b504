"""An engine whose rows run in a server over HTTP, one connection each, in an event loop of its own thread."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event, Thread
from time import monotonic

import httpx

from inference.answer_text import Detokenizer
from inference.engine_requests import DecodingRequest, FinishedRow, Generated, RunFigures
from inference.remote.remote_row import RemoteRow
from inference.remote.row_stream import EndableTask, StreamListener, StreamTerms, serve_row
from inference.remote.server_capabilities import ProbedServer
from inference.remote.server_errors import MOST_LOSSES, ServerLostOften
from inference.remote.server_watch import ServerWatch
from inference.remote.stream_figures import StreamFigures
from inference.serving_engine import run_to_the_end
from scheduling.request import lacking

# The longest time that a step waits for a row to end; the worker handles cancels and new rows between two steps.
STEP_S = 0.02
# The longest time to open a connection, and to close all connections.
CONNECT_WITHIN_S = 5.0
MOST_REMEMBERED = 10_000  # rows for which the engine remembers how often they lost the server

Progress = Callable[[list[FinishedRow]], None]


class RemoteEngine:
    """Serves rows in one server; gives up a row after `silent_s` without a token. `detokenizer` finds stop strings."""

    prefilled_layers = 0  # a step waits for no prompt

    def __init__(self, server: ProbedServer, detokenizer: Detokenizer | None = None, silent_s: float = 60.0) -> None:
        self.server = server
        self._rows: dict[str, RemoteRow] = {}
        self._tasks: dict[str, EndableTask] = {}
        self._ended: deque[RemoteRow] = deque()
        self._changed = Event()
        self._terms = StreamTerms(silent_s, detokenizer)
        self._losses: dict[str, int] = {}
        self._proven = False  # whether the server has answered a row since the last loss that counted
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
        self._watching = EndableTask(self.watch.run(lambda: list(self._rows.values())), self._loop)
        self._listener = StreamListener(
            ended=self._row_ended,
            silent=self.watch.set_aside,
            busy=self._is_busy,
            trial=self.watch.trial,
            usable=lambda: self.watch.report.fault is None,
        )

    @property
    def max_positions(self) -> int:
        """The server's number of positions; the largest integer if it is unknown."""
        return self.server.max_positions or sys.maxsize

    @property
    def rows(self) -> dict[str, int]:
        """The number of generated tokens of running and ended rows."""
        return {row_id: row.tokens for row_id, row in list(self._rows.items())}

    def generated(self, since: Mapping[str, int]) -> dict[str, Generated]:
        """Returns the new token ids of running rows, or their whole text if the server gives no ids."""
        rows = [(row_id, row) for row_id, row in list(self._rows.items()) if row_id in since]
        return {row_id: row.generated(since[row_id]) for row_id, row in rows}

    @property
    def kv_bytes(self) -> int:
        """The number of tokens of all rows: a server's memory is counted as one byte for each token."""
        return sum(len(row.sequence.prompt_ids) + row.tokens for row in list(self._rows.values()))

    @property
    def figures(self) -> RunFigures:
        """The figures since the engine was last empty."""
        return self._figures.figures

    def run(
        self,
        sequences: Sequence[DecodingRequest],
        iteration_limit: int | None = None,
        on_progress: Progress = lambda finished: None,
    ) -> tuple[list[FinishedRow], RunFigures]:
        """Serves a batch; an iteration is one token of each row.

        Ignores `iteration_limit` if the server takes no token ids.
        """
        if self._rows:
            raise ValueError(f"{len(self._rows)} rows are still running")
        self.insert(sequences, iteration_limit)
        return run_to_the_end(self, sequences, on_progress)

    def insert(self, sequences: Sequence[DecodingRequest], iteration_limit: int | None = None) -> None:
        """Adds rows; those that a full server refuses wait here. Raises ValueError for a row that runs already."""
        for sequence in sequences:
            if sequence.id in self._rows:
                raise ValueError(f"sequence {sequence.id} is running already")
        if not self._rows:
            self._figures = StreamFigures()
        for sequence in sequences:
            self._rows[sequence.id] = row = self._new_row(sequence, iteration_limit)
            refusal = self.refusal(sequence)
            if refusal is None:
                self._tasks[sequence.id] = EndableTask(self._serve(row), self._loop)
            else:
                row.end("refused", refusal)
                self._row_ended(row)

    def step(self) -> list[FinishedRow]:
        """Waits at most STEP_S for a row to end; raises ServerLostOften, and any unexpected error of a stream."""
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
            self._tasks.pop(row.sequence.id, None)  # a row that `refusal` ended has no task
        if self._unforeseen is not None:
            raise self._unforeseen
        suspects = [row.sequence.id for row in ended if self._losses.get(row.sequence.id, 0) >= MOST_LOSSES]
        if suspects:
            raise ServerLostOften(f"{self.server.url} was lost {MOST_LOSSES} times with the same rows")
        return [row.result() for row in ended]

    def remove(self, sequence_id: str) -> FinishedRow | None:
        """Closes a row's connection, which ends the row in the server."""
        row = self._take_out(sequence_id)
        return None if row is None else row.result("removed")

    def preempt(self, sequence_id: str) -> DecodingRequest:
        """Takes a row out and returns the sequence that resumes it, or restarts it if the server gives no token ids."""
        row = self._take_out(sequence_id)
        if row is None:
            raise KeyError(sequence_id)
        return row.rest()

    def close(self) -> None:
        """Ends every row and the thread of the connections."""
        for row_id in list(self._rows):
            self._take_out(row_id)
        for task in (*self._tasks.values(), self._watching):  # an ended row may still have a stream
            task.end()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CONNECT_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def refusal(self, sequence: DecodingRequest) -> str | None:
        """Returns why the server cannot serve this row, or None if it can."""
        needs = sequence.sampling.needs if sequence.turns else (*sequence.sampling.needs, "raw_prompt")
        lacked = lacking(needs, self.server.capabilities.lacks)
        return f"{self.server.kind} at this address lacks {' and '.join(lacked)}" if lacked else None

    def _new_row(self, sequence: DecodingRequest, iteration_limit: int | None) -> RemoteRow:
        able = self.server.capabilities
        limit = sequence.limit
        if self.server.max_positions is not None:
            limit = min(limit, max(1, self.server.max_positions - len(sequence.prompt_ids)))
        # A server applies a format only to what one request generates, counts tokens for penalties only there, and
        # restarts a seed's random numbers. So answers with a format, such penalties or a seed come from one request.
        seeded = sequence.sampling.seed is not None and not sequence.sampling.greedy
        whole = seeded or sequence.format is not None or sequence.sampling.counts_tokens
        resumes = able.resumes and not whole
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
            cached=0 if sequence.generated_ids else None,
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

    # the following methods run in the event loop's thread

    async def _serve(self, row: RemoteRow) -> None:
        try:
            await serve_row(self._client, self.server, row, self._listener, self._terms)
        except Exception as error:  # `step` raises it, since otherwise the row would never end
            self._unforeseen = error
            self._changed.set()

    async def _is_busy(self, fault: str) -> bool:
        """Returns whether rows should wait for a server too busy for one: it serves other rows, or answers a trial."""
        self.watch.record_refusal()
        return any(row.streaming for row in list(self._rows.values())) or await self.watch.trial(fault)

    def _row_ended(self, row: RemoteRow) -> None:
        if row.reason in ("eos", "stop", "limit", "refused"):  # a row is refused once the server has answered a trial
            self.watch.record_answer()
            self._proven = True
        before = self._losses.pop(row.sequence.id, 0)
        if row.reason == "unfinished" and (row.lost or row.broke):
            if len(self._losses) >= MOST_REMEMBERED:
                self._losses.pop(next(iter(self._losses)))
            self._losses[row.sequence.id] = before + (row.lost or self._proven)
            self._proven = False
            if row.broke and self._losses[row.sequence.id] >= MOST_LOSSES:  # the server answers other rows
                del self._losses[row.sequence.id]
                row.reason = "failed"
        self._ended.append(row)
        self._changed.set()
