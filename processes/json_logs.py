"""The log lines of every process: one JSON object a line, on standard error.

A traceback is part of its line, without texts that may hold prompts or answers: values of local variables, and messages
of exceptions that quote their input. Repeated warnings and errors are bounded: an unreachable broker must not fill the
disk with one traceback.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from time import monotonic
from traceback import format_tb
from types import TracebackType
from typing import Any, NoReturn, TextIO, cast

import structlog

SEVERE = ("warning", "error", "critical")  # levels whose repetitions are bounded; other lines are written on purpose
WINDOW_S = 10.0  # at most MOST_LINES of a kind are written in it; the next line says how many were left out
MOST_LINES = 5  # a repeated error then adds one line every 2 s on average, however often it comes. Not tuned
MOST_KINDS = 1000  # kinds remembered; a library that puts values into its text would make ever more of them
# Celery and scheduler loggers that write at least one line for each tick or job, which would hide all other lines.
CHATTY = ("apscheduler", "celery.app.trace", "celery.beat", "celery.worker.request", "celery.worker.strategy")

# Exceptions whose messages name files, types, shapes and addresses, never the text of a request. Of other exceptions a
# log shows only the type: a ValueError, a KeyError or a ValidationError quotes the value that it refuses.
MESSAGES_SHOWN = (
    OSError,
    ImportError,
    MemoryError,
    RuntimeError,
    TypeError,
    AttributeError,
    NameError,
    ArithmeticError,
)
# Packages whose exceptions we know: `models.connections.database_errors` shortens those of the database.
PACKAGES_SHOWN = {"amqp", "kombu", "psycopg", "redis", "sqlalchemy", "torch"} | {
    *("cli", "inference", "learning", "models", "processes", "scheduling", "tasks")
}
LONGEST_CHAIN = 8  # longest chain of causes that is followed; any value above real ones works


@dataclass(slots=True)
class _Seen:
    since: float
    lines: int = 0
    left_out: int = 0


class RepeatedLines:
    """Counts lines by kind, such as a logger's name with the format string; thread-safe."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[Hashable, _Seen] = {}
        self._lock = threading.Lock()

    def left_out(self, kind: Hashable) -> int | None:
        """Returns how many lines of this kind were left out before this one; None to leave this one out as well."""
        now = self._clock()
        with self._lock:
            if len(self._seen) > MOST_KINDS:
                self._seen.clear()
            seen = self._seen.setdefault(kind, _Seen(now))
            if now - seen.since > WINDOW_S:
                left_out = seen.left_out
                self._seen[kind] = _Seen(now, lines=1)
                return left_out
            if seen.lines >= MOST_LINES:
                seen.left_out += 1
                return None
            seen.lines += 1
            return 0


repeated = RepeatedLines()


def described(error: BaseException) -> str:
    """Returns the type of an exception, with its message if that cannot hold a client's text."""
    kind = type(error)
    package = kind.__module__.partition(".")[0]
    shown = package in PACKAGES_SHOWN or isinstance(error, MESSAGES_SHOWN)
    name = kind.__qualname__ if package == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name}: {error}" if shown and f"{error}" else name


def traceback_of(error: BaseException) -> str:
    """Returns the tracebacks of an exception and of its causes, the first cause first."""
    return "\n".join(reversed(list(_traceback_parts(error))))


def _traceback_parts(error: BaseException) -> Iterator[str]:
    heading = ""
    for _ in range(LONGEST_CHAIN):
        frames = "".join(format_tb(error.__traceback__))
        yield f"Traceback (most recent call last):\n{frames}{described(error)}{heading}"
        if error.__cause__ is not None:
            error, heading = error.__cause__, "\n\nwhich caused:\n"
        elif error.__context__ is not None and not error.__suppress_context__:
            error, heading = error.__context__, "\n\nwhile that was handled:\n"
        else:
            return


def render_exception(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace `exc_info` by the traceback's text, and exceptions in other fields by their descriptions."""
    given = line.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else given[1] if isinstance(given, tuple) else None
    if given is True:
        error = sys.exc_info()[1]
    if error is not None:
        line["exception"] = traceback_of(error)
    return {name: described(value) if isinstance(value, BaseException) else value for name, value in line.items()}


def bound_repetitions(logger: Any, method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Leave out severe lines repeated often within WINDOW_S; the next line says how many were left out."""
    if line.get("level") in SEVERE:
        left_out = repeated.left_out((line["level"], str(line.get("event"))))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            line["left_out"] = left_out
    return line


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of libraries; bounds lines with the same format string."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write this line."""
        if record.levelno >= logging.WARNING:
            left_out = repeated.left_out((record.name, record.levelno, str(record.msg)))
            if left_out is None:
                return False
            if left_out:
                record.msg = f"{record.msg} ({left_out} such lines were left out)"
        return bool(super().filter(record))


class LossyStream:
    """A stream that drops text that cannot be written, so that a full disk makes no call fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write the text, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.flush()


STAMPS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
RENDERING: list[structlog.typing.Processor] = [render_exception, structlog.processors.JSONRenderer()]


def configure(level: str) -> None:
    """Write our own lines that are at least as severe as `level`, for example "info"."""
    structlog.configure(
        processors=[*STAMPS, bound_repetitions, *RENDERING],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LossyStream(sys.stderr))),
    )


def configure_background(level: str) -> None:
    """Log our lines, the libraries' lines and uncaught exceptions; CHATTY loggers log only warnings and errors."""
    configure(level)
    configure_uncaught()
    root = logging.getLogger()
    root.handlers = [library_handler()]
    root.setLevel(level.upper())
    logging.captureWarnings(True)  # otherwise warnings are written as plain text
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def configure_uncaught() -> None:
    """Write uncaught exceptions of any thread as JSON lines."""
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thread: _log_uncaught(thread.exc_type, thread.exc_value, thread.exc_traceback)


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None = None
) -> None:
    if not issubclass(kind, SystemExit | KeyboardInterrupt):
        structlog.get_logger().error("uncaught", exc_info=error)


def refuse_to_start(why: str, level: str) -> NoReturn:
    """End a process that cannot start, because a server is away; its log says why."""
    configure(level)
    structlog.get_logger().critical("not started", why=why)
    sys.exit(1)


def library_handler() -> logging.Handler:
    """Returns a handler that writes the lines of libraries, which use `logging`, in the same format."""
    handler = BoundedHandler(sys.stderr)
    handler.addFilter(_without_exceptions)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=STAMPS,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *RENDERING],
        )
    )
    return handler


def _without_exceptions(record: logging.LogRecord) -> bool:
    """Replace exceptions among a record's arguments by their descriptions; Celery passes them as the text `exc`."""
    if isinstance(record.args, dict):
        if record.exc_info and record.exc_info[1] is not None and "exc" in record.args:
            record.args = {**record.args, "exc": described(record.exc_info[1])}
    elif record.args:
        record.args = tuple(described(a) if isinstance(a, BaseException) else a for a in record.args)
    return True
