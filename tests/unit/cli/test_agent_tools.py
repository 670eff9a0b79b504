"""What an agent reads: the tools' schemas, states in words, answers of lines, errors with the API's own words."""

from typing import Any

import anyio
import httpx
import pytest
from mcp.server.mcpserver.exceptions import ToolError

from cli.agent_tools import JobState, LineAnswer, line_answer, make_server, progress_of
from cli.api_client import Client, Json


def server_that_answers(status: int, content: Json) -> Any:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json=content))
    return make_server(Client("http://magnus", "key", transport=transport))


def test_each_tool_is_explained_and_only_the_one_that_cancels_is_destructive() -> None:
    tools = anyio.run(server_that_answers(200, {}).list_tools)
    assert {tool.name for tool in tools} == {"submit", "wait", "status", "batch", "answers", "cancel", "usage"}
    assert [tool.name for tool in tools if not tool.description or not tool.output_schema] == []
    writing = {tool.name: tool.annotations.destructive_hint for tool in tools if not tool.annotations.read_only_hint}
    assert writing == {"submit": False, "batch": False, "cancel": True}


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (400, {"message": "Invalid 'window': a window looks like 30m."}, "400: Invalid 'window': a window looks like"),
        (401, {"message": "No such key."}, "make one with `magnus keys create`"),
        (404, {"message": "No response 'resp_1'."}, "404: No response 'resp_1'"),
    ],
)
def test_an_error_of_the_api_is_told_in_its_own_words(status: int, error: Json, words: str) -> None:
    server = server_that_answers(status, {"error": error})
    with pytest.raises(ToolError, match=words):
        anyio.run(server.call_tool, "status", {"id": "resp_1"})


@pytest.mark.parametrize(
    ("tool", "call", "other"),
    [
        ("submit", {"input": "a", "model": "m"}, {"input": "b", "model": "m"}),
        ("batch", {"inputs": ["a"], "model": "m"}, {"inputs": ["a"], "model": "m", "window": "7d"}),
    ],
)
def test_the_same_call_again_has_the_same_key_and_body_until_something_is_cancelled(
    tool: str, call: Json, other: Json
) -> None:
    sent: list[tuple[str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/files":
            return httpx.Response(200, json={"id": f"file_{len(sent)}"})
        if not request.url.path.endswith("/cancel"):
            sent.append((request.headers["Idempotency-Key"], request.content))
        return httpx.Response(400, json={"error": {"message": "seen"}})

    server = make_server(Client("http://magnus", "key", transport=httpx.MockTransport(answer)))
    for name, arguments in ((tool, call), (tool, call), (tool, other), ("cancel", {"id": "resp_1"}), (tool, call)):
        with pytest.raises(ToolError, match="seen"):
            anyio.run(server.call_tool, name, arguments)
    assert sent[0] == sent[1]
    assert len({key for key, _ in sent}) == 3


@pytest.mark.parametrize(
    ("tool", "name", "value"),
    [
        ("submit", "max_output_tokens", 0),
        ("submit", "max_tokens", 10),
        ("wait", "timeout_s", 601),
        ("answers", "limit", 101),
        ("usage", "days", 0),
    ],
)
def test_an_argument_that_is_unknown_or_out_of_its_bounds_is_named(tool: str, name: str, value: int) -> None:
    needed = {"submit": {"input": "a"}, "wait": {"id": "a"}, "answers": {"batch_id": "a"}, "usage": {}}
    with pytest.raises(ToolError, match=name):
        anyio.run(server_that_answers(200, {}).call_tool, tool, {**needed[tool], name: value})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            JobState(id="r", status="queued", ended=False, tokens=0, predicted_tokens=40, queue_position=3, eta_s=8.4),
            "queued, place 3 in the queue: 0 of about 40 tokens, the end expected in 8 s",
        ),
        (JobState(id="r", status="in_progress", ended=False, tokens=7), "in_progress: 7 tokens"),
        (
            JobState(id="b", status="in_progress", ended=False, lines=9, answered_lines=4, failed_lines=0),
            "in_progress: 4 of 9 lines answered",
        ),
    ],
)
def test_progress_says_what_is_known(state: JobState, words: str) -> None:
    assert progress_of(state) == words


def test_what_is_not_known_is_left_out_of_a_state() -> None:
    state = JobState(id="r", status="queued", ended=False, tokens=0)
    assert state.model_dump() == {"id": "r", "status": "queued", "ended": False, "tokens": 0}


MESSAGE = {"output": [{"type": "message", "content": [{"text": "uno"}]}]}


@pytest.mark.parametrize(
    ("response", "error", "expected"),
    [
        ({"body": MESSAGE}, None, {"answer": "uno"}),
        ({"body": {"choices": [{"message": {"content": "uno"}}]}}, None, {"answer": "uno"}),
        ({"body": {"choices": [{"text": ""}]}}, None, {"answer": ""}),
        ({"body": {"data": [{"score": 0.5}]}}, None, {"answer": '[{"score": 0.5}]'}),
        ({"body": {"error": {"message": "too long"}}}, None, {"error": "too long"}),
        (None, {"message": "expired"}, {"error": "expired"}),
    ],
)
def test_a_line_has_its_answer_or_its_error_whichever_call_it_made(
    response: Json | None, error: Json | None, expected: dict[str, str]
) -> None:
    line = {"custom_id": "0", "response": response, "error": error}
    assert line_answer(line) == LineAnswer(custom_id="0", **expected)
