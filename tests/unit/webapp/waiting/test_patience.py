"""Which calls of a web process wait their turn, and for how long."""

from collections.abc import Callable
from io import BytesIO
from threading import Event, Thread
from typing import Any

import pytest
from flask import Flask, request

from processes.cpu_turns import current_turn
from webapp.waiting.patience import in_turns, take_turn

CHAT, SUBMISSION = "/v1/chat/completions", "/v1/responses"
SOON_S, LONG_S = 0.05, 20.0


class Calls:
    """An app whose first chat waits within it until it is told to go on; one turn at once."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.go_on, self.answer = Event(), Event()
        app = Flask(__name__)
        app.testing = True  # errors come out of it
        app.before_request(take_turn)
        app.wsgi_app = in_turns(app.wsgi_app, at_once=1)  # type: ignore[assignment, method-assign]
        for path in (CHAT, f"{CHAT}/", SUBMISSION):
            app.add_url_rule(path, path, self._serve, methods=["GET", "POST"])
        self._app = app

    def _serve(self) -> str:
        name = request.args["name"]
        self.came.append(name)
        if name == "fails":
            raise ConnectionError
        if name == "first":
            self.go_on.wait(LONG_S)
            with current_turn().given_up():
                self.answer.wait(LONG_S)
            self.came.append("first again")
        return ""

    def call(self, name: str, path: str = CHAT, method: str = "POST", body: BytesIO | None = None) -> None:
        stream = body or BytesIO(b"x")
        self._app.test_client().open(f"{path}?name={name}", method=method, input_stream=stream, content_length=1)

    def beside(self, *arguments: str, body: BytesIO | None = None) -> Thread:
        call: Callable[..., None] = self.call
        thread = Thread(target=call, args=arguments, kwargs={"body": body}, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def calls() -> Calls:
    return Calls()


def wait_for(calls: Calls, name: str, thread: Thread) -> None:
    while name not in calls.came:
        thread.join(SOON_S)
        assert thread.is_alive() or name in calls.came


def test_a_submission_does_not_stand_behind_calls_that_wait(calls: Calls) -> None:
    first = calls.beside("first")
    wait_for(calls, "first", first)
    second = calls.beside("second")
    calls.call("submission", SUBMISSION)
    calls.call("polled", CHAT, "GET")
    assert calls.came == ["first", "submission", "polled"]
    calls.go_on.set()
    calls.answer.set()
    first.join(LONG_S)
    second.join(LONG_S)
    assert sorted(calls.came[3:]) == ["first again", "second"]


def test_a_call_that_waits_lets_the_next_one_in_and_stands_in_line_again_for_its_answer(calls: Calls) -> None:
    first = calls.beside("first")
    wait_for(calls, "first", first)
    second = calls.beside("second", f"{CHAT}/")
    second.join(SOON_S)
    assert calls.came == ["first"]
    calls.go_on.set()
    second.join(LONG_S)
    assert calls.came == ["first", "second"]
    calls.answer.set()
    first.join(LONG_S)
    assert calls.came[-1] == "first again"


def test_a_client_whose_body_does_not_come_holds_no_turn(calls: Calls) -> None:
    class Slow(BytesIO):
        asked, comes = Event(), Event()

        def readinto(self, buffer: Any) -> int:
            self.asked.set()
            self.comes.wait(LONG_S)
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            self.asked.set()
            self.comes.wait(LONG_S)
            return super().read(size)

    body = Slow(b"x")
    slow = calls.beside("slow", body=body)
    assert body.asked.wait(LONG_S)
    calls.call("quick")
    assert calls.came == ["quick"]
    body.comes.set()
    slow.join(LONG_S)


def test_the_turn_of_a_call_that_fails_is_given_back(calls: Calls) -> None:
    for _ in range(3):
        with pytest.raises(ConnectionError):
            calls.call("fails")
