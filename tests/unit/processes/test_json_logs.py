import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from processes import json_logs

SECRET = "a secret"  # a name, because tracebacks show the source


@pytest.fixture(autouse=True)
def _defaults_afterwards() -> Iterator[None]:
    hooks = sys.excepthook, threading.excepthook
    yield
    sys.excepthook, threading.excepthook = hooks
    structlog.reset_defaults()


def test_a_line_is_json_with_its_time_level_and_bound_context(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("info")
    with structlog.contextvars.bound_contextvars(worker="w1"):
        structlog.get_logger().warning("leases lost", batches=[1, 2])
    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "leases lost", "level": "warning", "worker": "w1", "batches": [1, 2]}


def test_a_traceback_names_no_local_values(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("info")
    prompt = "a secret"
    try:
        len(prompt) / 0
    except ZeroDivisionError:
        structlog.get_logger().exception("failed")
    written = capsys.readouterr().err
    assert "ZeroDivisionError" in json.loads(written)["exception"]
    assert prompt not in written


def test_a_library_line_has_the_same_format(capsys: pytest.CaptureFixture[str]):
    record = logging.LogRecord("celery", logging.INFO, "worker.py", 1, "%s ready.", ("w1",), None)
    json_logs.library_handler().handle(record)
    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "w1 ready.", "level": "info"}


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("a secret"), "ValueError"),
        (KeyError("a secret"), "KeyError"),
        (UnicodeEncodeError("utf-8", "a secret", 0, 1, "surrogates not allowed"), "UnicodeEncodeError"),
        (json.JSONDecodeError("a secret", "a secret", 0), "json.decoder.JSONDecodeError"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_only_messages_that_cannot_quote_a_request_are_shown(error: Exception, shown: str):
    assert json_logs.described(error) == shown


def test_the_messages_of_causes_are_hidden_too(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("info")
    try:
        try:
            int(SECRET)
        except ValueError as error:
            raise OSError("disk full") from error
    except OSError as error:
        structlog.get_logger().error("failed", exc_info=True, error=error)
    line = json.loads(capsys.readouterr().err)
    assert line["error"] == "OSError: disk full"
    assert line["exception"].index("ValueError\n") < line["exception"].index("which caused")
    assert line["exception"].endswith("OSError: disk full")
    assert "a secret" not in str(line)


def test_an_exception_that_no_thread_caught_is_a_line_too(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("info")
    json_logs.configure_uncaught()
    try:
        int(SECRET)
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "uncaught"
    assert "a secret" not in str(line)


def test_a_library_that_formats_an_exception_shows_its_type_alone(capsys: pytest.CaptureFixture[str]):
    error = ValueError("a secret")
    record = logging.LogRecord(
        "celery.app.trace", logging.ERROR, "trace.py", 1, "raised %(exc)s", ({"exc": repr(error)},), None
    )
    record.exc_info = (ValueError, error, None)
    json_logs.library_handler().handle(record)
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "raised ValueError"
    assert "a secret" not in str(line)


def test_a_line_that_a_full_disk_does_not_take_is_lost_and_fails_nobodys_call(monkeypatch: pytest.MonkeyPatch):
    went_on = False
    with suppress(OSError), Path("/dev/full").open("w", buffering=1, encoding="utf-8") as full:  # raises as it closes
        with pytest.raises(OSError, match="No space"):
            full.write("line\n")
        monkeypatch.setattr(sys, "stderr", full)
        json_logs.configure("info")
        structlog.get_logger().warning("not_served", status=503)
        monkeypatch.undo()
        went_on = True
    assert went_on
