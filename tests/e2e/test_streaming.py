"""Streams over the whole service, read by the official `openai` client: token by token, always the stored answer."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from openai import OpenAI

from inference.toy.toy_applications import toy_requests
from tests.e2e.whole_service import MAGNUS, Up, eventually

pytestmark = pytest.mark.timeout(300)

MODEL = "bundled"
REQUEST = next(one for one in toy_requests(100, seed=3, median_words=16.0) if one.application == "double")
DOUBLE, WORDS = REQUEST.instruction, REQUEST.input
LONG = " ".join(["river cloud"] * 8)  # the model does not know how to end this one
ENDLESS = {"ignore_eos": True}  # nor is the answer ended because it repeats itself
STREAMS = 100


@pytest.fixture(scope="module", params=["fusion", "vs"])
def client(up: Up, request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    """A client of the service under a policy whose rows join, and one whose batches run to completion."""
    set_policy(up, request.param)
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key, max_retries=0) as client:
        yield client
    set_policy(up, "fusion")


@pytest.fixture
def joining(up: Up) -> Iterator[OpenAI]:
    """A client of the service under `fusion`."""
    with OpenAI(base_url=f"{up.url}/v1", api_key=up.key, max_retries=0) as client:
        yield client


def set_policy(up: Up, policy: str) -> None:
    subprocess.run([MAGNUS, "policy", "set", policy, "--state-dir", str(up.state_dir)], check=True, capture_output=True)


def test_a_chat_streams_what_it_would_have_answered(client: OpenAI):
    messages = [{"role": "system", "content": DOUBLE}, {"role": "user", "content": WORDS}]
    asked = {"model": MODEL, "messages": messages, "temperature": 0.8, "seed": 7}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert {c.id for c in chunks} == {chunks[0].id}


def test_a_response_streams_what_it_would_have_answered(client: OpenAI):
    events = list(client.responses.create(model=MODEL, instructions=DOUBLE, input=WORDS, stream=True))
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    completed = events[-1]
    assert completed.type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == completed.response.output_text
    stored = client.responses.retrieve(completed.response.id)
    assert stored.output_text == text
    assert completed.response.usage == stored.usage


def test_rows_that_join_come_token_by_token(joining: OpenAI):
    # long enough that a busy machine, which sends what came meanwhile together, still sends many pieces
    endless = {"ignore_eos": True}
    chunks = list(joining.completions.create(model=MODEL, prompt=LONG, max_tokens=600, stream=True, extra_body=endless))
    assert sum(bool(chunk.choices[0].text) for chunk in chunks) > 5


def test_a_background_stream_that_breaks_off_goes_on_where_it_was(joining: OpenAI):
    background = joining.responses.create(model=MODEL, instructions=DOUBLE, input=WORDS, stream=True, background=True)
    text, number, request_id = "", 0, ""
    for event in background:
        number = event.sequence_number
        if event.type == "response.created":
            request_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    background.close()
    for event in joining.responses.retrieve(request_id, stream=True, starting_after=number):
        assert event.sequence_number > number
        number = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
    assert joining.responses.retrieve(request_id).output_text == text
    again = list(joining.responses.retrieve(request_id, stream=True))
    assert "".join(e.delta for e in again if e.type == "response.output_text.delta") == text
    assert again[-1].type == "response.completed"
    after = again[-1].sequence_number
    assert list(joining.responses.retrieve(request_id, stream=True, starting_after=after)) == []


def test_a_killed_worker_neither_repeats_nor_loses_text(up: Up, joining: OpenAI):
    asked = {"model": MODEL, "instructions": DOUBLE, "input": LONG, "max_output_tokens": 900, "temperature": 0.3}
    stream = joining.responses.create(**asked, extra_body=ENDLESS, stream=True)  # type: ignore[call-overload]
    text, request_id = "", ""
    for event in stream:
        if event.type == "response.created":
            request_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    before = magnus(joining, request_id)
    os.kill(up.pid(before["worker"]), signal.SIGKILL)
    text += "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert joining.responses.retrieve(request_id).output_text == text
    assert magnus(joining, request_id)["batch"] != before["batch"]


def magnus(client: OpenAI, request_id: str) -> dict[str, Any]:
    """The `magnus` part of a response."""
    said: dict[str, Any] = client.responses.retrieve(request_id).to_dict()["magnus"]  # type: ignore[assignment]
    return said


def test_a_client_that_leaves_its_stream_cancels_the_request_and_one_in_the_background_goes_on(joining: OpenAI):
    ids = {}
    for background in (False, True):
        stream = joining.responses.create(
            model=MODEL,
            instructions=DOUBLE,
            input=LONG,
            max_output_tokens=900,
            stream=True,
            background=background,
            extra_body=ENDLESS,
        )
        for event in stream:
            if event.type == "response.created":
                ids[background] = event.response.id
            if event.type == "response.output_text.delta":
                break
        stream.close()
    eventually(lambda: joining.responses.retrieve(ids[False]).status == "cancelled")
    eventually(lambda: joining.responses.retrieve(ids[True]).status in ("completed", "incomplete"))


def test_a_hundred_streams_at_once_are_all_whole(joining: OpenAI):
    begin = Event()

    def stream(number: int) -> bool:
        begin.wait()
        words = " ".join(WORDS.split()[: 1 + number % 20])
        chunks = list(joining.completions.create(model=MODEL, prompt=words, max_tokens=40, stream=True))
        stored = joining.responses.retrieve(chunks[0].id.replace("cmpl-", "resp_"))
        return "".join(chunk.choices[0].text for chunk in chunks) == stored.output_text

    with ThreadPoolExecutor(STREAMS) as pool:
        whole = [pool.submit(stream, number) for number in range(STREAMS)]
        begin.set()
        assert all(one.result() for one in whole)
