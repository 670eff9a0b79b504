"""Answers every waiting request of the API at once, as a worker would, with what the test wants answered."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.api_service import Api


@contextmanager
def answering(api: Api, text: str = "one", **columns: Any) -> Iterator[None]:
    """While this lasts, whatever is queued ends with this text and a token for each of its words."""
    values = {
        "status": "completed",
        "output_text": text,
        "output_tokens": len(text.split()),
        "logprobs": None,
        "reasoning_tokens": None,
        "cached_tokens": None,
    } | columns
    if values["logprobs"] is not None:
        values["logprobs"] = json.dumps(values["logprobs"])
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            api.sql(
                """update requests set status = :status, output_text = :output_text, output_tokens = :output_tokens,
                logprobs = cast(:logprobs as jsonb),
                reasoning_tokens = :reasoning_tokens, cached_tokens = :cached_tokens,
                finished_at = clock_timestamp() where status = 'queued'""",
                **values,
            )
            stop.wait(0.01)

    worker = threading.Thread(target=serve)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def events(answer: Any) -> list[dict[str, Any]]:
    """Reads the JSON objects of a stream of server-sent events."""
    lines = answer.get_data(as_text=True).splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and "[DONE]" not in line]
