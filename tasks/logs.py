"""Log lines of the background processes: our own and Celery's, in one format."""

import logging

import json_logs

# Celery loggers that write at least one line a tick: at ten ticks a second they would bury everything else.
CHATTY = ("celery.app.trace", "celery.beat", "celery.worker.request", "celery.worker.strategy")


def configure(level: str) -> None:
    """Write lines that are at least as severe as `level`; from the CHATTY loggers only warnings and errors."""
    json_logs.configure(level)
    json_logs.configure_uncaught()
    root = logging.getLogger()
    root.handlers = [json_logs.library_handler()]
    root.setLevel(level.upper())
    logging.captureWarnings(True)  # or they are written as text
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
