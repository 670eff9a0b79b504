import json
import logging
from collections.abc import Iterator

import pytest
import structlog

import json_logs


@pytest.fixture(autouse=True)
def _defaults_afterwards() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_a_line_is_json_with_its_time_level_and_bound_context(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("info")
    with structlog.contextvars.bound_contextvars(worker="w1"):
        structlog.get_logger().warning("leases lost", batches=[1, 2])
    line = json.loads(capsys.readouterr().err)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "leases lost", "level": "warning", "worker": "w1", "batches": [1, 2]}


def test_lines_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]):
    json_logs.configure("warning")
    structlog.get_logger().info("ready")
    assert capsys.readouterr().err == ""


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
