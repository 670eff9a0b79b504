"""The HTTP client: what it repeats, what it explains. A scripted app answers in-process."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from flask import Flask, Response, jsonify, request

from cli.api_client import Client, Json, ServiceError, output_text
from cli.output import Unreachable


class Script:
    """Answers with each of these in turn, and remembers what it was asked."""

    def __init__(self, *answers: tuple[int, Json, dict[str, str]]) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.slept: list[float] = []
        self._answers: Iterator[tuple[int, Json, dict[str, str]]] = iter(answers)

    def client(self) -> Client:
        app = Flask("scripted")

        @app.route("/<path:path>", methods=["GET", "POST"])
        def answer(path: str) -> tuple[Response, int, dict[str, str]]:
            self.seen.append((request.method, request.full_path, dict(request.headers)))
            status, content, headers = next(self._answers)
            return jsonify(content), status, headers

        transport = httpx.WSGITransport(app=app)
        return Client("http://service/v1/", "the-key", attempts=3, transport=transport, sleep=self.slept.append)


def busy(**headers: str) -> tuple[int, Json, dict[str, str]]:
    return 503, {"error": {"message": "not now"}}, {name.replace("_", "-"): value for name, value in headers.items()}


def ok(**content: Any) -> tuple[int, Json, dict[str, str]]:
    return 200, content, {}


def test_a_call_waits_as_long_as_it_is_told_and_is_repeated_with_the_same_idempotency_key() -> None:
    script = Script(busy(Retry_After="3"), busy(Retry_After="600"), ok(id="resp_1"))
    with script.client() as client:
        assert client.create({"input": "hello"}) == {"id": "resp_1"}
    assert script.slept == [3.0, 10.0]  # never longer than ten seconds
    assert len({headers["Idempotency-Key"] for _, _, headers in script.seen}) == 1
    assert {headers["Authorization"] for _, _, headers in script.seen} == {"Bearer the-key"}


def test_two_submissions_have_different_idempotency_keys() -> None:
    script = Script(ok(id="a"), ok(id="b"))
    with script.client() as client:
        client.create({"input": "hello"})
        client.create({"input": "hello"})
    assert len({headers["Idempotency-Key"] for _, _, headers in script.seen}) == 2


def test_a_service_that_stays_busy_is_reported_with_its_own_words() -> None:
    script = Script(busy(), busy(), busy())
    with script.client() as client, pytest.raises(ServiceError, match="503: not now"):
        client.retrieve("resp_1")
    assert script.slept == [0.25, 0.5]


def test_a_refusal_is_not_repeated() -> None:
    script = Script((404, {"error": {"message": "no such response"}}, {}))
    with script.client() as client, pytest.raises(ServiceError, match="404: no such response"):
        client.retrieve("resp_1")
    assert script.slept == []


def test_a_wrong_key_gets_a_remedy() -> None:
    script = Script((401, {"error": {"message": "unknown key"}}, {}))
    with script.client() as client, pytest.raises(ServiceError, match="magnus keys create"):
        client.retrieve("resp_1")


def test_a_list_is_read_to_its_last_page() -> None:
    pages = [
        ok(data=[{"id": "a"}, {"id": "b"}], has_more=True, last_id="b"),
        ok(data=[{"id": "c"}], has_more=False, last_id="c"),
    ]
    script = Script(*pages)
    with script.client() as client:
        assert [response["id"] for response in client.responses(status="queued")] == ["a", "b", "c"]
    assert [path for _, path, _ in script.seen] == [
        "/v1/responses?limit=100&status=queued",
        "/v1/responses?limit=100&status=queued&after=b",
    ]


def test_waiting_polls_ever_more_slowly_until_the_response_is_final() -> None:
    script = Script(ok(status="queued"), ok(status="in_progress"), ok(status="completed"))
    with script.client() as client:
        assert client.wait("resp_1")["status"] == "completed"
    assert script.slept == pytest.approx([0.05, 0.075])


def test_waiting_ends_at_its_bound() -> None:
    script = Script(ok(status="queued"))
    with script.client() as client:
        assert client.wait("resp_1", timeout_s=0.0)["status"] == "queued"


def test_no_answer_at_all_is_its_own_error() -> None:
    slept: list[float] = []
    with (
        Client("http://127.0.0.1:9", "key", attempts=2, sleep=slept.append) as client,
        pytest.raises(Unreachable, match=r"no answer from http://127\.0\.0\.1:9"),
    ):
        client.model()
    assert slept == [0.25]


def test_an_answer_that_is_not_magnus_is_told_apart() -> None:
    app = Flask("other")
    with (
        Client("http://other", "key", transport=httpx.WSGITransport(app=app)) as client,
        pytest.raises(ServiceError, match="answered 404, and not as Magnus does"),
    ):
        client.model()


def test_an_answers_text_has_neither_thinking_nor_calls_of_functions() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    called = {"type": "function_call", "name": "weather", "arguments": "{}"}
    assert output_text({"output": [thought, {"type": "message", "content": [{"text": "rain"}]}, called]}) == "rain"
    assert output_text({"output": [called]}) == ""


def test_a_stream_is_read_event_by_event_wherever_its_pieces_end() -> None:
    text = "one\u2028two\x85three"
    body = b'event: a\ndata: {"n": 1}\n\n\ndata: ' + json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n\n"
    pieces = (body[at : at + 5] for at in range(0, len(body), 5))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=pieces))
    with Client("http://service", "key", transport=transport) as client:
        assert list(client.stream({"input": "hello"})) == [{"n": 1}, {"text": text}]


def test_a_stream_that_is_refused_is_reported_with_the_services_words() -> None:
    script = Script((400, {"error": {"message": "no such field"}}, {}))
    with script.client() as client, pytest.raises(ServiceError, match="400: no such field"):
        next(client.stream({"input": "hello"}))


def test_an_id_stays_within_its_part_of_the_address() -> None:
    seen: list[bytes] = []

    def answer(asked: httpx.Request) -> httpx.Response:
        seen.append(asked.url.raw_path)
        return httpx.Response(200, json={})

    with Client("http://service", "key", transport=httpx.MockTransport(answer)) as client:
        for call in (client.retrieve, client.cancel, client.batch):
            call("a/../b?c")
    assert seen == [
        b"/v1/responses/a%2F..%2Fb%3Fc",
        b"/v1/responses/a%2F..%2Fb%3Fc/cancel",
        b"/v1/batches/a%2F..%2Fb%3Fc",
    ]


def test_a_command_says_once_that_it_waits_for_a_service(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Client("http://127.0.0.1:9", "key", attempts=6, sleep=lambda _: None) as client,
        pytest.raises(Unreachable, match="no answer from http://127"),
    ):
        client.model()
    assert capsys.readouterr().err == "no answer from http://127.0.0.1:9 yet, trying again for half a minute\n"
