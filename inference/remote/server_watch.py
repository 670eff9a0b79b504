"""Watches one server: how many rows it should have, and the `fault` for which it gets none until a trial succeeds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic

import httpx
from anyio import fail_after, move_on_after

from inference.remote.remote_row import RemoteRow
from inference.remote.row_cap import CapSigns, RowCap
from inference.remote.row_stream import StreamTerms, stream_once
from inference.remote.server_capabilities import ProbedServer
from inference.remote.server_errors import RowRefused, ServerBusy, ServerFailed, ServerGarbage, ServerLost
from inference.remote.server_load import LOAD_PAGES, ServerLoad
from inference.remote.stream_figures import StepSamples
from inference.sequences import Sequence as TokenSequence

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
TRIAL = TokenSequence("trial", prompt_ids=(0,), limit=1, turns=(("user", "."),))


@dataclass(frozen=True, slots=True)
class ServerOffer:
    """The most rows that a server should have now, None for no limit; it gets no work while it has a `fault`."""

    max_rows: int | None
    fault: str | None


class ServerWatch:
    """Runs in the streams' event loop; any thread may read `offer`, `load` and `samples`."""

    def __init__(self, server: ProbedServer, client: httpx.AsyncClient, terms: StreamTerms) -> None:
        self._server, self._client, self._terms = server, client, terms
        able = server.capabilities
        known_memory = server.capacity_tokens is not None
        by_throughput = not able.reports_waiting and not known_memory
        self._cap = RowCap(server.max_rows, by_throughput, known_memory)
        self._soon = asyncio.Event()
        self._fault: str | None = None
        self._refused = False
        self._preemptions: int | None = None
        self._tokens = 0
        self._last_tokens: dict[str, int] = {}
        self.load = ServerLoad()
        self.samples = StepSamples()

    @property
    def offer(self) -> ServerOffer:
        """The most rows that the server should have now, and its fault, if it has one."""
        return ServerOffer(self._cap.value, self._fault)

    def check_soon(self) -> None:
        """Makes the watch check the server at once, because a connection was lost."""
        self._soon.set()

    def record_refusal(self) -> None:
        """Records that the server was too busy for a row."""
        self._refused = True

    def set_aside(self, fault: str) -> None:
        """Gives the server no work until a trial succeeds, because its answer could not be read."""
        self._fault = fault
        self._soon.set()

    async def run(self, rows: Callable[[], Sequence[RemoteRow]]) -> None:
        """Checks the server every CHECK_S seconds, and at once after `check_soon`."""
        for number in count(1):
            known = self._fault
            fault = await self._check(check_model=known is not None or number % CHECKS_PER_MODEL_CHECK == 0)
            if fault is None and known is not None:
                fault = await self._trial()
            if fault is None and self._fault is not known:  # `set_aside` was called meanwhile
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
        """Returns a fault if the server lists other models and not ours; an empty list is not a fault."""
        if self._server.kind == "transformers":
            return None  # it lists its cache directory, and refuses requests for another model itself
        answer = await self._client.get("/v1/models")
        try:
            listed = [str(model["id"]) for model in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return None
        if not listed or self._server.model in listed:
            return None
        return f"it serves {', '.join(listed)[:100]} now, not {self._server.model}"

    async def _trial(self) -> str | None:
        """Asks the server for one token; returns a fault if it does not come."""
        row = RemoteRow(TRIAL, 1, 1, self._server.capabilities.token_ids_out, False, monotonic())
        try:
            with fail_after(max(TRIAL_WITHIN_S, self._terms.silent_s)):
                await stream_once(self._client, self._server, row, self._terms)
        except (ServerGarbage, ServerFailed, ServerLost, RowRefused) as error:
            return f"a trial failed: {error}"
        except ServerBusy:
            return None
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
