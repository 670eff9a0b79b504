"""The log lines of every process: one JSON object a line, on standard error.

A traceback is part of its line, without the values of local variables: they may hold prompts.
"""

import logging
import sys
from typing import Any, TextIO

import structlog

from repeated_lines import RepeatedLines

SEVERE = ("warning", "error", "critical")  # whose repetitions are bounded: what is less severe is written on purpose
repeated = RepeatedLines()


def bound_repetitions(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Leave out a severe line that came often lately; the next one says how many were left out."""
    if line.get("level") in SEVERE:
        left_out = repeated.left_out((line["level"], str(line.get("event"))))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            line["left_out"] = left_out
    return line


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of libraries, of repeated ones a few: a kind is the text before its values are put in."""

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Whether to write this line."""
        if record.levelno >= logging.WARNING:
            left_out = repeated.left_out((record.name, record.levelno, str(record.msg)))
            if left_out is None:
                return False
            if left_out:
                record.msg = f"{record.msg} ({left_out} such lines were left out)"
        return super().filter(record)


STAMPS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
RENDERING: list[structlog.typing.Processor] = [
    structlog.processors.format_exc_info,
    structlog.processors.JSONRenderer(),
]


def configure(level: str) -> None:
    """Write our own lines that are at least as severe as `level`, for example "info"."""
    structlog.configure(
        processors=[*STAMPS, bound_repetitions, *RENDERING],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def library_handler() -> logging.Handler:
    """A handler that writes the lines of libraries, which use `logging`, in the same format."""
    handler = BoundedHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=STAMPS,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *RENDERING],
        )
    )
    return handler
