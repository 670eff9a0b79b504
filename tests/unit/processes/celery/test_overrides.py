"""The private parts of Celery, kombu and Flower that `processes/celery/` overrides or calls are as they were tried.

A newer version that changes one fails here by name: then read what it does now, change the override, and add the
version to VERSIONS.
"""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from celery.app.amqp import AMQP
from celery.beat import Scheduler
from celery.worker.request import Request
from flower.views import BaseHandler
from kombu import Connection
from kombu.transport.redis import Channel, Transport

VERSIONS = {"celery": "5.7", "kombu": "5.7", "flower": "2.2"}  # with which all of these were tried
PARTS: list[tuple[Callable[..., Any], str]] = [
    (Scheduler.adjust, "(self, n, drift=-0.01)"),
    (Scheduler.apply_entry, "(self, entry, producer=None)"),
    (Scheduler._ensure_connected, "(self)"),
    (Request.send_event, "(self, type, **fields)"),
    (Connection.get_transport_cls, "(self)"),
    (
        Connection._ensure_connection,
        "(self, errback=None, max_retries=None, interval_start=2, interval_step=2, interval_max=30, callback=None, "
        "reraise_as_library_errors=True, timeout=None)",
    ),
    (Channel._brpop_read, "(self, **options)"),
    (Channel._receive, "(self)"),
    (Channel._q_for_pri, "(self, queue, pri)"),
    (Transport._deliver, "(self, message, queue)"),
    (BaseHandler.get_active_queue_names, "(self)"),
]


@pytest.mark.parametrize(("part", "signature"), PARTS, ids=lambda one: getattr(one, "__qualname__", ""))
def test_an_overridden_part_has_the_signature_with_which_it_was_tried(part: Callable[..., Any], signature: str) -> None:
    assert str(inspect.signature(part)) == signature


def test_the_overridden_attributes_are_there() -> None:
    assert Transport.Channel is Channel
    assert AMQP.Connection is Connection


@pytest.mark.parametrize("package", VERSIONS)
def test_the_installed_version_is_one_that_was_tried(package: str) -> None:
    assert version(package).startswith(f"{VERSIONS[package]}.")
