"""The log lines of every process: one JSON object a line, on standard error.

A traceback is part of its line, without the values of local variables: they may hold prompts.
"""

import logging
import sys

import structlog

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
        processors=[*STAMPS, *RENDERING],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def library_handler() -> logging.Handler:
    """A handler that writes the lines of libraries, which use `logging`, in the same format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=STAMPS,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *RENDERING],
        )
    )
    return handler
