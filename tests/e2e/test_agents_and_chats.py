"""`magnus mcp` through the official client of its protocol, and `magnus chat`, against a whole service."""

import os
import signal
import subprocess
from typing import Any

import anyio
import pytest
from mcp import Client as AgentClient
from mcp import StdioServerParameters
from mcp.types import TextContent

from cli.api_client import Client, output_text
from inference.toy.toy_applications import toy_requests
from tests.e2e.whole_service import MAGNUS, Up, eventually

pytestmark = pytest.mark.timeout(180)

REQUEST = next(one for one in toy_requests(100, seed=3, median_words=16.0) if one.application == "double")
DOUBLE, WORDS = REQUEST.instruction, REQUEST.input
LONG = " ".join(["river cloud"] * 8)  # the model does not know how to end this one


def environment_of(up: Up) -> dict[str, str]:
    return {"MAGNUS_URL": up.url, "MAGNUS_API_KEY": up.key}


@pytest.fixture(scope="module")
def expected(up: Up) -> str:
    """The service's answer to WORDS."""
    with Client(up.url, up.key) as client:
        made = client.create({"model": "bundled", "instructions": DOUBLE, "input": WORDS})
        return output_text(client.wait(made["id"]))


def test_an_agent_submits_waits_reads_and_cancels(up: Up, expected: str) -> None:
    async def use() -> None:
        server = StdioServerParameters(command=MAGNUS, args=["mcp"], env=environment_of(up))
        async with AgentClient(server) as agent:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await agent.call_tool(tool, arguments)
                assert not result.is_error, result.content
                content: dict[str, Any] = result.structured_content
                return content

            job = await call("submit", input=WORDS, instructions=DOUBLE)
            answered = await call("wait", id=job["id"], timeout_s=60)
            assert (answered["status"], answered["ended"], answered["answer"]) == ("completed", True, expected)
            assert await call("status", id=job["id"]) == answered

            heard: list[str | None] = []

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                assert total == 1 > progress
                heard.append(message)

            long = await call("submit", input=LONG, instructions=DOUBLE, max_output_tokens=1000)
            waited = await agent.call_tool("wait", {"id": long["id"], "timeout_s": 1}, progress_callback=hear)
            assert waited.structured_content is not None
            assert heard
            if not waited.structured_content["ended"]:
                await call("cancel", id=long["id"])
            assert (await call("wait", id=long["id"]))["status"] in ("cancelled", "completed", "incomplete")

            batch = await call("batch", inputs=[WORDS, "river"], instructions=DOUBLE)
            ended = await call("wait", id=batch["id"], timeout_s=120)
            assert (ended["status"], ended["answered_lines"]) == ("completed", 2)
            first = await call("answers", batch_id=batch["id"], limit=1)
            assert first == {"lines": [{"custom_id": "0", "answer": expected}], "more": True}
            rest = await call("answers", batch_id=batch["id"], after=1)
            assert ([line["custom_id"] for line in rest["lines"]], rest["more"]) == (["1"], False)

            assert sum(one["requests"] for one in (await call("usage", days=2))["result"]) >= 3
            unknown = await agent.call_tool("status", {"id": "resp_" + "0" * 32})
            assert unknown.is_error
            assert isinstance(unknown.content[0], TextContent)
            assert "404: " in unknown.content[0].text

    anyio.run(use)


def test_a_chat_in_a_pipe_answers_each_line_and_says_what_was_predicted(up: Up, expected: str) -> None:
    said = subprocess.run(
        [MAGNUS, "chat", "--system", DOUBLE],
        input=f"{WORDS}\n/new\n{WORDS}\n",
        env=os.environ | environment_of(up),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"{expected}\n{expected}\n"
    first, new, second = said.stderr.splitlines()
    assert new == "a new conversation"
    assert all(" predicted; the first after " in line for line in (first, second))


def test_ctrl_c_ends_a_chat_in_a_pipe_and_cancels_its_answer_on_the_server(up: Up) -> None:
    chat = subprocess.Popen(
        [MAGNUS, "chat", "--system", DOUBLE, "--max-output-tokens", "1000"],
        env=os.environ | environment_of(up),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert chat.stdin is not None
    assert chat.stdout is not None
    with chat, Client(up.url, up.key) as client:
        chat.stdin.write(LONG.encode() + b"\n")
        chat.stdin.flush()
        assert chat.stdout.read(1)  # the answer has begun
        chat.send_signal(signal.SIGINT)
        assert chat.wait(30) == 130
        newest = next(client.responses(order="desc"))
        eventually(lambda: client.retrieve(newest["id"])["status"] == "cancelled")
