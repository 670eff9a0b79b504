"""Webhooks and usage of the whole service: what was answered is told and counted, also when a sender is killed."""

import os
import signal
from collections.abc import Iterator

import pytest
from openai import OpenAI

from cli.api_client import Client
from inference.toy.toy_applications import APPLICATIONS
from tests.e2e.whole_service import Up, eventually, running_up
from tests.integration.tenants.webhook_receiver import running_receiver

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

JOBS = 12


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    """A service that may reach this host."""
    monkeypatch.setenv("MAGNUS_PRIVATE_WEBHOOKS", "true")
    with running_up("--workers", "1") as running:
        yield running


def test_every_answer_is_told_once_or_more_and_counted_once(up: Up) -> None:
    body = {"model": "bundled", "instructions": APPLICATIONS["repeat"].instruction, "input": "river cloud"}
    with running_receiver() as receiver, Client(up.url, up.key) as client:
        made = client.call("POST", "magnus", "webhooks", json={"url": receiver.url})
        jobs = [client.create(body)["id"] for _ in range(JOBS)]
        eventually(lambda: receiver.received)
        os.kill(up.pid("chores"), signal.SIGKILL)
        jobs += [client.create(body)["id"] for _ in range(JOBS)]
        eventually(lambda: len(set(receiver.event_ids())) == 2 * JOBS)
        verifier = OpenAI(api_key=up.key, webhook_secret=made["secret"])
        events = [verifier.webhooks.unwrap(one.body, one.headers) for one in receiver.received]
        assert [event.to_dict()["data"] for event in events] == [
            {"id": event.id.replace("evt_", "resp_")} for event in events
        ]
        assert {event.id.replace("evt_", "resp_") for event in events} == set(jobs)
        assert {event.type for event in events} == {"response.completed"}
        (used,) = client.usage()["data"]
        assert (used["tenant"], used["requests"]) == ("default", 2 * JOBS)
        assert used["answer_tokens"] > 0
        assert used["gpu_seconds"] > 0
