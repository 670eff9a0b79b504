"""Starts the Celery worker or the beat of a module, without Celery's command line: that loads Flower into each process.

python -m tasks.celery_process MODULE [QUEUE NAME]; without a queue it is a beat.
"""

import socket
import sys
from importlib import import_module
from typing import Any

# Interval of Celery's own heartbeat, which only Flower reads; at Celery's 2 s it would be most of an idle worker's CPU
# time.
FLOWER_HEARTBEAT_S = 30


def main(module: str, queue: str | None = None, name: str | None = None) -> int:
    """Run it until a signal comes; returns the exit status."""
    app = import_module(module).app
    if queue is None:
        app.Beat(quiet=True).run()
        return 0
    return consume(app, queue, str(name), threads=1)


def consume(app: Any, queue: str, name: str, threads: int) -> int:
    """Runs the tasks of a queue, at most `threads` at once, until a signal comes; returns the exit status."""
    worker = app.Worker(
        hostname=f"{name}@{socket.gethostname()}",
        queues=queue,
        pool="threads",
        concurrency=threads,
        # nothing here needs Celery's gossip between workers (events, clocks at the start)
        without_gossip=True,
        without_mingle=True,
        heartbeat_interval=FLOWER_HEARTBEAT_S,
        quiet=True,  # without its banner, which would spoil the log
    )
    worker.start()
    return worker.exitcode or 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
