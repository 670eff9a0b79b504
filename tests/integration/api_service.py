"""The API as tests call it: a client with a key, and the database behind it."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine, text
from werkzeug.test import TestResponse

from inference.answer_parts import read_answer as read
from models.connections.session import make_sessions
from models.tenants import api_keys

MODEL = "words"
UNREADABLE = "An answer in a form that no version of the reader knows."


class ApiAnswer(TestResponse):
    """An answer of the API as type checkers see it: there is always a JSON body."""

    json: Any


@dataclass
class Api:
    """A client with a key, and the database behind it."""

    client: FlaskClient
    engine: Engine
    key: str

    def call(self, method: str, path: str, **arguments: Any) -> ApiAnswer:
        """Makes one call with this client's key."""
        headers = {"Authorization": f"Bearer {self.key}"} | arguments.pop("headers", {})
        return cast(ApiAnswer, self.client.open(path, method=method, headers=headers, **arguments))

    def submit(self, input: object = "eins zwei drei", **fields: Any) -> dict[str, Any]:
        """Submits a request in the background; returns the response."""
        body = {"model": MODEL, "input": input, "instructions": "Translate.", "background": True} | fields
        answer = self.call("POST", "/v1/responses", json=body)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        created: dict[str, Any] = answer.json
        return created

    def sql(self, statement: str, **parameters: Any) -> list[Any]:
        """Runs a statement, commits it, and returns its rows."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return list(result) if result.returns_rows else []

    def other_tenant(self, tenant: str = "globex") -> "Api":
        """The same service with another tenant's key."""
        return self.with_key(tenant=tenant)

    def with_key(self, **created: Any) -> "Api":
        """The same service with another key, made as `api_keys.create` is told to."""
        with make_sessions(self.engine).begin() as session:
            _, key = api_keys.create(session, **{"name": "other", "tenant": "acme", **created})
        return Api(self.client, self.engine, key)

    def routes(self) -> list[tuple[str, str]]:
        """Every call that the OpenAPI document lists, as method and path."""
        document = self.client.get("/openapi.json").get_json()
        return [(method.upper(), path) for path, calls in document["paths"].items() for method in calls]


def finish(api: Api, id: str, *, text: str = "one two", status: str = "completed") -> None:
    api.sql(
        """update requests set status = :status, output_text = :text, output_tokens = 2, finish_reason = 'eos',
        finished_at = clock_timestamp() where id = :id""",
        id=id,
        status=status,
        text=text,
    )


def cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the reader of answers fail on UNREADABLE."""

    def read_answer(answer: str, *form: Any) -> Any:
        if answer == UNREADABLE:
            raise ValueError("unreadable")
        return read(answer, *form)

    monkeypatch.setattr("protocol.responses.output_items.read_answer", read_answer)
