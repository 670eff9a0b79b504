"""The peers of the live benchmark: other ways to serve the requests that our web process stored.

Each peer takes requests first come, first served from the same Postgres, writes its answers there, and runs the same
model: `celery` (one Celery task a request, no batching), `window` (fixed-size batches by time window through
`model.generate`) and `generate_batch` (transformers' continuous batching).
"""

import os
import sys

import click

from benchmarks.live.peer_engines import PeerModel, continuous, windows
from benchmarks.live.peer_store import PeerStore
from cli.hosting.child_process import ChildProgram
from cli.hosting.process_commands import ONE_THREAD
from cli.hosting.service_files import RunningService
from settings import read_settings

PEERS = ("celery", "window", "generate_batch")


def peer_programs(
    name: str, workers: int, service: RunningService, model: str | None, kv_budget: str
) -> list[ChildProgram]:
    """The processes of a peer: one for each worker, and for `celery` one more that publishes."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {"MAGNUS_DATABASE_URL": service.database_url, "MAGNUS_REDIS_URL": service.redis_url}
    environment |= {"MAGNUS_MODEL": model} if model else {}
    engine = environment | {"OMP_NUM_THREADS": str(threads), "MAGNUS_KV_BUDGET": kv_budget}
    python = (sys.executable, "-m")
    if name != "celery":
        return [
            ChildProgram(f"peer-{n}", (*python, "benchmarks.live.live_peers", name), env=engine) for n in range(workers)
        ]
    celery = (*python, "celery", "-A", "benchmarks.live.peer_tasks", "worker", "-Q", "peer", "-P", "solo")
    flags = ("--without-gossip", "--without-mingle", "-n")
    publisher = ChildProgram(
        "publisher", (*python, "benchmarks.live.live_peers", "publish"), env=environment | ONE_THREAD
    )
    return [
        *(ChildProgram(f"peer-{n}", (*celery, *flags, f"peer-{n}@%h"), env=engine) for n in range(workers)),
        publisher,
    ]


@click.command()
@click.argument("kind", type=click.Choice(["publish", *PEERS[1:]]))
def main(kind: str) -> None:
    """Run one process of a peer until it is stopped by a signal."""
    settings = read_settings()
    store = PeerStore(str(settings.database_url))
    if kind == "publish":
        from benchmarks.live.peer_tasks import publish  # only here: importing it makes the Celery app

        publish(store)
    else:
        serve = {"window": windows, "generate_batch": continuous}[kind]
        serve(store, PeerModel(settings.model, settings.kv_budget))


if __name__ == "__main__":
    main()
