"""The peer without batching: one Celery task a request, published as it arrives."""

import time
from functools import cache

from celery import Celery

from benchmarks.live.peer_engines import Answers, one_by_one
from benchmarks.live.peer_store import PeerRequest, Store
from settings import read_settings

POLL_S = 0.02

settings = read_settings()
app = Celery("peer", broker=settings.redis_url)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, task_default_queue="peer")


@app.task(name="peer.answer")  # type: ignore[untyped-decorator]  # celery is untyped
def answer(id: str, instructions: str, input: str, limit: int) -> None:
    """Generate one answer and store it."""
    store, answers = _process()
    one_by_one(store, answers, PeerRequest(id, instructions, input, limit))


def publish(store: Store) -> None:
    """A task for each request that is queued, for ever."""
    while True:
        asked = store.claim(100)
        for each in asked:
            answer.apply_async((each.id, each.instructions, each.input, each.limit))
        if not asked:
            time.sleep(POLL_S)


@cache
def _process() -> tuple[Store, Answers]:
    return Store(str(settings.database_url)), Answers(settings.model)
