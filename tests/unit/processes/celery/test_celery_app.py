"""Which requests of a periodic task Flower is told about."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from celery import Celery

from processes.celery.celery_app import BoundedEvents

APP = Celery("test", set_as_current=False)
NUMBERS = count()


@APP.task(name="tasks.plan", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def plan() -> None:
    """A tick."""


@dataclass
class Eventer:
    """Keeps what would be sent to the broker."""

    enabled: bool = True
    sent: list[tuple[str, str]] = field(default_factory=list)

    def send(self, type: str, uuid: str, **fields: Any) -> None:
        self.sent.append((uuid, type))


@dataclass
class Message:
    """The attributes that Celery reads of a message from the broker."""

    headers: dict[str, Any]
    body: tuple[Any, ...] = ((), {}, {})
    delivery_info: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    payload: Any = None


@pytest.fixture(autouse=True)
def nothing_shown_before() -> Iterator[None]:
    BoundedEvents._shown_at.clear()
    yield
    BoundedEvents._shown_at.clear()


def tick(eventer: Eventer) -> str:
    """Receive and end one tick; returns its id."""
    number = f"tick-{next(NUMBERS)}"
    message = Message({"id": number, "task": "tasks.plan", "argsrepr": "()", "kwargsrepr": "{}"})
    request = BoundedEvents(message, app=APP, eventer=eventer, task=plan, decoded=True, on_ack=lambda *_: None)
    request.send_event("task-started")
    request.send_event("task-succeeded", result=None)
    return number


def test_of_ticks_in_one_second_the_first_is_shown_with_all_its_events() -> None:
    eventer = Eventer()
    first = tick(eventer)
    tick(eventer)
    assert eventer.sent == [(first, "task-received"), (first, "task-started"), (first, "task-succeeded")]


def test_while_nobody_listens_nothing_is_sent() -> None:
    eventer = Eventer(enabled=False)
    tick(eventer)
    assert eventer.sent == []
