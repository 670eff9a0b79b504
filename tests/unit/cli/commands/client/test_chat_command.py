"""A chat remembers what was answered, forgets what was not, and obeys its commands. A scripted service answers."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cli.api_client import Client, Json
from cli.commands.client.chat_command import EMPTIED_LINE, HELP, TITLE, Chat, Waiting, time_left
from cli.output import CommandFailed, Unreachable


class Scripted:
    """A service that answers every question with the same events, and what it was asked and shown."""

    def __init__(self, *events: Json) -> None:
        self.events = events
        self.asked: list[tuple[str, Json]] = []
        self.shown: list[tuple[str, bool]] = []
        self.expected: list[Json | None] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        self.asked.append((request.url.path, json.loads(content) if content else {}))
        if request.url.path.endswith("/cancel"):
            return httpx.Response(200, json={"status": "cancelled"})
        return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in self.events))

    def chat(self, show: Callable[[str, bool], None] | None = None) -> Chat:
        client = Client("http://magnus", "key", transport=httpx.MockTransport(self.answer))
        return Chat(client, {"model": "toy"}, show or (lambda *piece: self.shown.append(piece)), self.expected.append)


CREATED = {"type": "response.created", "response": {"id": "resp_1"}}
LEFT = {"tokens_left": 40, "eta_s": 4.2}
PROGRESS = {"type": "magnus.progress", "magnus": LEFT}
THOUGHT = {"type": "response.reasoning_text.delta", "delta": "hm"}
PIECES = [{"type": "response.output_text.delta", "delta": piece} for piece in ("a ", "lot")]


def ended(last: str = "completed", **fields: Any) -> Json:
    message = {"type": "message", "content": [{"text": "a lot"}]}
    facts = {"status": last, "output": [message], "usage": {"output_tokens": 2}, "magnus": {"predicted_tokens": 3}}
    return {"type": f"response.{last}", "response": facts | {"error": None} | fields}


def test_an_answer_is_shown_as_it_comes_and_is_part_of_the_next_question() -> None:
    service = Scripted(CREATED, PROGRESS, THOUGHT, *PIECES, ended())
    chat = service.chat()
    said = chat.ask("how much?")
    assert said.startswith("2 tokens, 3 predicted; the first after ")
    assert service.shown == [("hm", True), ("\n\n", True), ("a ", False), ("lot", False)]
    assert service.expected == [LEFT, None]
    chat.ask("really?")
    assert [turn["content"] for turn in service.asked[1][1]["input"]] == ["how much?", "a lot", "really?"]


@pytest.mark.parametrize(
    ("last", "error", "words"),
    [
        ([ended("failed", error={"message": "Too late."})], CommandFailed, "Too late"),
        ([ended("failed", status="cancelled")], CommandFailed, "was cancelled"),
        ([{"type": "error", "message": "no worker"}], CommandFailed, "no worker"),
        ([], Unreachable, "ended before"),
    ],
)
def test_a_question_without_an_answer_is_forgotten(last: list[Json], error: type[Exception], words: str) -> None:
    service = Scripted(CREATED, *PIECES, *last)
    chat = service.chat()
    with pytest.raises(error, match=words):
        chat.ask("how much?")
    service.events = (CREATED, ended())
    chat.ask("really?")
    assert service.asked[-1][1]["input"] == [{"role": "user", "content": "really?"}]


def test_an_interrupt_cancels_the_answer_on_the_server() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    service = Scripted(CREATED, *PIECES, ended())
    with pytest.raises(KeyboardInterrupt):
        service.chat(interrupt).ask("how much?")
    assert [path for path, _ in service.asked] == ["/v1/responses", "/v1/responses/resp_1/cancel"]


def test_a_terminal_shows_how_long_an_answer_still_takes_until_it_has_ended(capsys) -> None:
    waiting = Waiting(terminal=True)
    waiting.expect(LEFT)
    waiting.begin()
    waiting.expect({"tokens_left": 9, "eta_s": None})
    waiting.expect(None)
    line, *rest = capsys.readouterr().err.split(EMPTIED_LINE)[1:]
    assert "about 40 tokens, 4 s left" in line
    assert "".join(rest) == TITLE.format("about 9 tokens left") + TITLE.format("")
    assert time_left({"tokens_left": None, "eta_s": None}) == ""

    quiet = Waiting(terminal=False)
    quiet.expect(LEFT)
    quiet.begin()
    quiet.expect(None)
    assert capsys.readouterr().err == ""


def test_commands_change_the_conversation_and_are_not_sent() -> None:
    service = Scripted(CREATED, ended())
    chat = service.chat()
    assert chat.obey("/help") == HELP
    assert chat.obey("/system Be brief.\n") == "answers from now on follow this text"
    chat.ask("how much?")
    assert chat.obey("/new") == "a new conversation"
    chat.ask("really?")
    chat.obey("/system")
    chat.ask("really?")
    assert [(body["instructions"], len(body["input"])) for _, body in service.asked] == [
        ("Be brief.", 1),
        ("Be brief.", 1),
        (None, 3),
    ]


def test_only_a_lone_unknown_word_after_a_slash_is_taken_for_a_mistyped_command() -> None:
    chat = Scripted().chat()
    assert chat.obey("/nwe") == "/nwe is no command; /help lists them"
    assert chat.obey("/etc/passwd has which columns?") is None
    assert chat.obey("/usr is what?") is None
    assert chat.obey("what is /new") is None
