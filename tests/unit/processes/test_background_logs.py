import json
import logging
import warnings
from collections.abc import Iterator

import pytest
import structlog

from processes import json_logs


@pytest.fixture(autouse=True)
def _loggers_afterwards() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    logging.captureWarnings(False)
    for name in json_logs.CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_celerys_lines_are_written_as_our_own_are(capsys: pytest.CaptureFixture[str]):
    json_logs.configure_background("info")
    logging.getLogger("celery.worker").info("Connected to %s", "redis")
    structlog.get_logger().info("ready")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["Connected to redis", "ready"]
    assert [line.keys() for line in lines] == [{"event", "level", "timestamp"}] * 2


def test_a_warning_of_python_is_a_line_too(capsys: pytest.CaptureFixture[str]):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        json_logs.configure_background("info")
        warnings.warn("out of date", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "out of date" in json.loads(line)["event"]


def test_what_celery_writes_at_every_tick_is_left_out_but_its_warnings_are_not(capsys: pytest.CaptureFixture[str]):
    json_logs.configure_background("info")
    beat = logging.getLogger("celery.beat")
    beat.info("Scheduler: Sending due task plan")
    beat.warning("no broker")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["no broker"]
