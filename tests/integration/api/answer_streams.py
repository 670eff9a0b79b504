"""Open streams of the API, read event by event, and the worker's part: the end of an answer."""

import json
from collections.abc import Iterator
from typing import Any

from models import notifications
from tests.integration.api_service import Api

CHAT = {"model": "words", "messages": [{"role": "user", "content": "eins"}], "stream": True}
PROMPT = {"model": "words", "prompt": "eins", "stream": True}
MESSAGE = CHAT | {"max_tokens": 9}
RESPONSE = {"model": "words", "input": "eins", "stream": True}

Event = dict[str, Any]


class Stream:
    """An open stream, event by event; `comments` has the progress that came in comments so far."""

    def __init__(self, api: Api, method: str, path: str, **arguments: Any) -> None:
        self.comments: list[Event] = []
        self._answer = api.call(method, path, **arguments)
        assert self._answer.status_code == 200, self._answer.get_data(as_text=True)
        assert self._answer.mimetype == "text/event-stream"
        self._parts = self._answer.iter_encoded()

    def __iter__(self) -> Iterator[Event]:
        for part in self._parts:
            for line in part.decode().splitlines():
                if line.startswith(": progress "):
                    self.comments.append(json.loads(line.removeprefix(": progress ")))
                elif line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def close(self) -> None:
        self._answer.close()


def post(api: Api, path: str, body: dict[str, Any]) -> Stream:
    return Stream(api, "POST", path, json=body)


def end(api: Api, text: str | None, **columns: Any) -> None:
    """Ends an answer as a worker does."""
    values = {"status": "completed", "error": None, "tokens": 2, "logprobs": None} | columns
    api.sql(
        """update requests set status = :status, output_text = :text, output_tokens = :tokens,
        error = cast(:error as jsonb), logprobs = cast(:logprobs as jsonb), finished_at = clock_timestamp()""",
        text=text,
        **values,
    )
    ids = [row.id for row in api.sql("select id from requests")]
    with api.engine.begin() as connection:
        notifications.notify_ended(connection, ids)
