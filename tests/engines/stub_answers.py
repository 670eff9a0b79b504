"""Makes the stub server give a model's answers, so that it passes the same tests as real servers."""

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from request_body import Sampling
from tests.integration.stub_engine_server import StubHandler, StubServer

SLICE_TOKENS = 8  # tokens that are computed for one row before another gets its turn


class AnsweringStub(StubServer):
    """The stub server, on this engine; it accepts as many connections at once as real servers do."""

    request_queue_size = 256

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.always = answers_of(engine)


def answers_of(engine: Engine) -> Callable[[StubHandler, dict[str, Any]], None]:
    """Returns a handler that streams the engine's completion slice by slice."""
    turn = Lock()

    def answer(handler: StubHandler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        sampling = Sampling(
            body["temperature"],
            body["top_p"],
            body["top_k"],
            body.get("seed"),
            ignore_eos=body.get("ignore_eos", False),
        )
        row = DecodingRequest(
            "row", tuple(body["prompt"]), body["max_tokens"], sampling=sampling, stop=tuple(body["stop"])
        )
        reason = None
        while reason is None:
            with turn:
                (ended,), _ = engine.run([row], SLICE_TOKENS)
            new = ended.generated_ids[len(row.generated_ids) :]
            reason = {"eos": "stop", "landed": "stop", "stop": "stop", "limit": "length"}.get(ended.reason)
            handler.send_event({"choices": [{"text": "", "token_ids": new, "finish_reason": reason}]})
            row = row if reason else replace(row, generated_ids=ended.generated_ids)
        handler.send_event("[DONE]")

    return answer
