"""Which calls of a web process stand in line, and for how long."""

from collections.abc import Iterable
from threading import Event, Thread
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from webapp.waiting.turns import TURN, Turn, in_turns

CHAT, SUBMISSION = "/v1/chat/completions", "/v1/responses"
SOON_S, LONG_S = 0.05, 20.0


class Calls:
    """An app whose chats wait within it until they are told to go on, one turn at once."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.go_on, self.gave_up, self.answer = Event(), Event(), Event()
        self._app = in_turns(self._serve, at_once=1)

    def _serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        self.came.append(environ["QUERY_STRING"])
        if environ["QUERY_STRING"] == "fails":
            raise ConnectionError
        if environ["QUERY_STRING"] == "first":
            turn: Turn = environ[TURN]
            self.go_on.wait(LONG_S)
            with turn.given_up():
                self.gave_up.set()
                self.answer.wait(LONG_S)
            self.came.append("first again")
        return []

    def call(self, name: str, path: str = CHAT, method: str = "POST") -> None:
        self._app({"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": name}, lambda *_: lambda _: None)

    def beside(self, name: str, path: str = CHAT) -> Thread:
        thread = Thread(target=self.call, args=(name, path), daemon=True)
        thread.start()
        return thread


def test_a_submission_does_not_stand_behind_calls_that_wait() -> None:
    calls = Calls()
    first, second = calls.beside("first"), calls.beside("second")
    calls.call("submission", SUBMISSION)
    calls.call("polled", CHAT, method="GET")
    assert "submission" in calls.came
    calls.go_on.set()
    calls.answer.set()
    first.join(LONG_S)
    second.join(LONG_S)
    assert sorted(calls.came) == ["first", "first again", "polled", "second", "submission"]


def test_a_call_that_waits_lets_the_next_one_in_and_stands_in_line_again_for_its_answer() -> None:
    calls = Calls()
    first = calls.beside("first")
    while not calls.came:
        first.join(SOON_S)
    second = calls.beside("second", f"{CHAT}/")
    second.join(SOON_S)
    assert calls.came == ["first"]
    calls.go_on.set()
    second.join(LONG_S)
    assert calls.came == ["first", "second"]
    calls.answer.set()
    first.join(LONG_S)
    assert calls.came[-1] == "first again"


def test_the_turn_of_a_call_that_fails_is_given_back() -> None:
    calls = Calls()
    for _ in range(3):
        with pytest.raises(ConnectionError):
            calls.call("fails")
