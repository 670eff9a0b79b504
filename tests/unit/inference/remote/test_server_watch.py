"""Rows that failed are told the outcome of a trial, whenever they failed."""

import asyncio
import json

import httpx

from inference.remote.row_stream import StreamTerms
from inference.remote.server_capabilities import ProbedServer, ServerCapabilities
from inference.remote.server_watch import ServerWatch

FAULT = "ReadError"  # one object, as the names of errors without a message are
END = {"choices": [{"token_ids": [7], "text": "a", "finish_reason": "stop"}]}


def test_a_row_that_fails_during_a_trial_with_the_same_fault_is_told_the_next_one():
    async def outcomes() -> list[bool]:
        rows: list[asyncio.Task[bool]] = []

        async def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST" and len(rows) == 1:  # the first trial
                rows.append(asyncio.create_task(watch.trial(FAULT)))
                await asyncio.sleep(0.01)
            return httpx.Response(200, text=f"data: {json.dumps(END)}\n\n")

        server = ProbedServer("http://h", "vllm", "m", ServerCapabilities(token_ids_in=True, token_ids_out=True))
        async with httpx.AsyncClient(base_url="http://h", transport=httpx.MockTransport(answer)) as client:
            watch = ServerWatch(server, client, StreamTerms(5.0, None))
            rows.append(asyncio.create_task(watch.trial(FAULT)))
            await asyncio.sleep(0)
            watching = asyncio.create_task(watch.run(list))
            try:
                first = await asyncio.wait_for(rows[0], 10)
                return [first, await asyncio.wait_for(rows[1], 10)]
            finally:
                watching.cancel()

    assert asyncio.run(outcomes()) == [True, True]
