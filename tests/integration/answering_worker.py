"""Answers every waiting request of the API at once, as a worker would, with what the test wants answered."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text

from models import notifications
from tests.integration.api_service import Api


@contextmanager
def answering(api: Api, output_text: str = "one", **columns: Any) -> Iterator[None]:
    """While this lasts, whatever is queued ends with this text and a token for each of its words."""
    values = {
        "status": "completed",
        "output_text": output_text,
        "output_tokens": len(output_text.split()),
        "logprobs": None,
        "reasoning_tokens": None,
        "cached_tokens": None,
        "finish_reason": None,
        "stop_string": None,
    } | columns
    if values["logprobs"] is not None:
        values["logprobs"] = json.dumps(values["logprobs"])
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            end(
                api,
                """update requests set status = :status, output_text = :output_text, output_tokens = :output_tokens,
                logprobs = cast(:logprobs as jsonb),
                reasoning_tokens = :reasoning_tokens, cached_tokens = :cached_tokens, finish_reason = :finish_reason,
                stop_string = :stop_string, finished_at = clock_timestamp() where status = 'queued' returning id""",
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


def end(api: Api, update: str, **values: Any) -> None:
    """Runs an update that ends requests and returns their ids; wakes the calls that wait for them."""
    with api.engine.begin() as connection:
        ids = list(connection.execute(text(update), values).scalars())
        notifications.notify_ended(connection, ids)


def events(answer: Any) -> list[dict[str, Any]]:
    """Reads the JSON objects of a stream of server-sent events."""
    lines = answer.get_data(as_text=True).splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and "[DONE]" not in line]
