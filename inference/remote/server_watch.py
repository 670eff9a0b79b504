"""Watches a server: finds how many rows it should have, and a fault for which it gets none until a trial succeeds."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from time import monotonic

import httpx
from anyio import fail_after, move_on_after

from inference.answer_text import storable
from inference.engine_requests import DecodingRequest
from inference.remote.remote_row import RemoteRow
from inference.remote.row_cap import CapSigns, RowCap
from inference.remote.row_stream import StreamTerms, stream_once
from inference.remote.server_capabilities import ProbedServer
from inference.remote.server_errors import RowRefused, ServerBusy, ServerFailed, ServerLost
from inference.remote.server_fingerprint import announced
from inference.remote.server_load import LOAD_PAGES, ServerLoad
from inference.remote.stream_figures import StepSamples
from scheduling.worker_facts import WorkerReport

# Seconds between two checks. A check costs the server one page of metrics; rarer checks notice a full queue later. Not
# tuned.
CHECK_S = 1.0
CHECK_WITHIN_S = 5.0  # a server that does not answer a check within this time gets no new work until it does
# If the server does not report its queue, a row without a token for this number of seconds counts as waiting; a prefill
# takes less. Not tuned.
WAITING_S = 2.0
# If the server reports its queue, rows that were sent within this number of seconds do not count as waiting, because
# they join at the next iteration. Not tuned.
JUST_SENT_S = 0.5
CHECKS_PER_MODEL_CHECK = 10
TRIAL_WITHIN_S = 30.0
LONGEST_PAUSE_S = 8.0  # the longest time between two trials; a failed row waits for the next trial. Not tuned
# A few tokens, because the streams of some servers break off after the first one.
TRIAL = DecodingRequest("trial", prompt_ids=(0,), limit=4, turns=(("user", "."),))


class ServerWatch:
    """Runs in the streams' event loop; any thread may read `report`, `load` and `samples`."""

    def __init__(self, server: ProbedServer, client: httpx.AsyncClient, terms: StreamTerms) -> None:
        self._server, self._client, self._terms = server, client, terms
        able = server.capabilities
        known_memory = server.capacity_tokens is not None
        by_throughput = not able.reports_waiting and not known_memory
        self._cap = RowCap(server.max_rows, by_throughput, known_memory)
        self._soon = asyncio.Event()
        self._fault: str | None = None
        self._trial_pause_s = CHECK_S / 2  # least seconds from a trial to the next; 0 once the server answers a row
        self._trial_at = 0.0  # the instant before which no trial begins
        self._awaiting: list[asyncio.Future[bool]] = []  # rows that failed since the last trial began
        self._refused = False
        self._preemptions: int | None = None
        self._tokens = 0
        self._last_tokens: dict[str, int] = {}
        self.load = ServerLoad()
        self.samples = StepSamples()

    @property
    def report(self) -> WorkerReport:
        """The most rows that the server should have now, and its fault, if it has one."""
        return WorkerReport(self._cap.value, self._fault and storable(self._fault))

    def record_refusal(self) -> None:
        """Records that the server was too busy for a row."""
        self._refused = True

    def record_answer(self) -> None:
        """Records that the server has answered a row, so that a trial follows its next failure at once."""
        self._trial_pause_s = self._trial_at = 0.0

    def set_aside(self, fault: str) -> None:
        """Gives the server no work until it answers a trial."""
        self._fault = fault
        self._soon.set()

    async def trial(self, fault: str) -> bool:
        """Sets the server aside, because it failed; returns whether it answers the next trial."""
        self.set_aside(fault)
        outcome = asyncio.get_running_loop().create_future()
        self._awaiting.append(outcome)
        return bool(await outcome)

    async def run(self, rows: Callable[[], Sequence[RemoteRow]]) -> None:
        """Checks the server every CHECK_S seconds, and at once after `set_aside`."""
        for number in count(1):
            known = self._fault
            fault = await self._check(check_model=known is not None or number % CHECKS_PER_MODEL_CHECK == 0)
            if fault is None and known is not None:
                fault = known if monotonic() < self._trial_at else await self._next_trial()
            elif fault is not None:
                self._tell(self._take_awaiting(), answered=False)
            if fault is None and (self._fault is not known or self._awaiting):  # `trial` was called meanwhile
                fault = self._fault
            self._fault = fault
            if fault is None:
                now, present = monotonic(), rows()
                self._cap.update(self._signs(present, now), now)
                self.samples.observe(present, now)
            await self._pause()

    async def _pause(self) -> None:
        if self._fault is not None:  # a known fault needs no early check, which each lost connection would cause
            self._soon.clear()
        with move_on_after(CHECK_S):
            await self._soon.wait()
        self._soon.clear()

    async def _check(self, check_model: bool) -> str | None:
        """Reads the load; returns the server's fault, or None."""
        page = self._server.capabilities.load_page
        path = page or ("/v1/models" if self._server.kind == "openai" else "/health")
        try:
            with fail_after(CHECK_WITHIN_S):
                answer = await self._client.get(path, params=self._server.query)
                if not answer.is_success:
                    return f"{path} answers with status {answer.status_code}"
                if page is not None:
                    self.load = LOAD_PAGES[page](answer.text)
                return await self._other_model() if check_model else None
        except (httpx.HTTPError, TimeoutError) as error:
            return f"no answer ({type(error).__name__})"

    async def _other_model(self) -> str | None:
        """Returns a fault if the server lists other models and not ours, or another model under our name.

        An empty list is not a fault.
        """
        if self._server.kind == "transformers":
            return None  # this server lists its cache directory, and refuses requests for another model itself
        answer = await self._client.get("/v1/models")
        try:
            listed = announced(answer.json()["data"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        model = self._server.model
        said, now = self._server.announced.get(model), listed.get(model)
        if said and now and now != said:
            return f"it serves another model as {model} now: restart this worker"
        if not listed or model in listed or model not in self._server.announced:  # llama.cpp answers to any name
            return None
        return f"it serves {', '.join(listed)[:100]} now, not {model}"

    async def _next_trial(self) -> str | None:
        """Tries the server and tells the outcome to the rows that failed before; returns the server's fault.

        If the server has answered no row since the previous trial, it gets one row at first, and trials become rarer.
        """
        awaiting = self._take_awaiting()
        fault = await self._trial()
        if fault is None and self._trial_pause_s:
            self._cap.restart()
        self._trial_pause_s = min(LONGEST_PAUSE_S, 2 * self._trial_pause_s or CHECK_S)
        self._trial_at = monotonic() + self._trial_pause_s
        self._tell(awaiting, answered=fault is None)
        return fault

    def _take_awaiting(self) -> list[asyncio.Future[bool]]:
        awaiting, self._awaiting = self._awaiting, []
        return awaiting

    def _tell(self, awaiting: Sequence[asyncio.Future[bool]], *, answered: bool) -> None:
        for outcome in awaiting:
            if not outcome.done():  # the row was not taken out meanwhile
                outcome.set_result(answered)

    async def _trial(self) -> str | None:
        """Asks the server for a few tokens; returns a fault if they do not come."""
        row = RemoteRow(TRIAL, TRIAL.limit, TRIAL.limit, self._server.capabilities.token_ids_out, False, monotonic())
        try:
            with fail_after(max(TRIAL_WITHIN_S, self._terms.silent_s)):
                await stream_once(self._client, self._server, row, self._terms)
        except (ServerFailed, ServerLost, ServerBusy, RowRefused) as error:
            return f"a trial failed: {error}"
        except (httpx.HTTPError, httpx.StreamError, TimeoutError) as error:
            return f"a trial got no answer ({type(error).__name__})"
        return None

    def _signs(self, rows: Sequence[RemoteRow], now: float) -> CapSigns:
        if self.load.waiting is None:
            waiting = sum(row.first_token_at is None and now - row.inserted_at > WAITING_S for row in rows)
        else:
            just_sent = sum(row.first_token_at is None and now - row.inserted_at <= JUST_SENT_S for row in rows)
            waiting = max(0, self.load.waiting - just_sent)
        tokens = {row.sequence.id: row.tokens for row in rows}
        self._tokens += sum(max(0, total - self._last_tokens.get(row_id, 0)) for row_id, total in tokens.items())
        self._last_tokens = tokens
        before, self._preemptions = self._preemptions, self.load.preemptions
        preempted = before is not None and self._preemptions is not None and self._preemptions > before
        refused, self._refused = self._refused, False
        return CapSigns(len(rows), waiting, self._tokens, preempted, refused)
