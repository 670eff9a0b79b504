"""The peer without batching: one Celery task for each request, published when the request arrives."""

import time
from functools import cache

from celery import Celery

from benchmarks.live.peer_engines import PeerModel, one_by_one
from benchmarks.live.peer_store import PeerRequest, PeerStore
from settings import read_settings

POLL_S = 0.02  # between two looks for requests; any value well below a response time does
PUBLISHED_AT_ONCE = 100  # requests claimed in one transaction; any value does that keeps the transaction short

settings = read_settings()
app = Celery("peer", broker=settings.redis_url)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, task_default_queue="peer")


@app.task(name="peer.answer")  # type: ignore[untyped-decorator]  # celery is untyped
def answer(id: str, instructions: str, input: str, limit: int) -> None:
    """Generate one answer and store it."""
    store, model = _store_and_model()
    one_by_one(store, model, PeerRequest(id, instructions, input, limit))


def publish(store: PeerStore) -> None:
    """Publish a task for each queued request, without end."""
    while True:
        claimed = store.claim(PUBLISHED_AT_ONCE)
        for each in claimed:
            answer.apply_async((each.id, each.instructions, each.input, each.limit))
        if not claimed:
            time.sleep(POLL_S)


@cache
def _store_and_model() -> tuple[PeerStore, PeerModel]:
    return PeerStore(str(settings.database_url)), PeerModel(settings.model, settings.kv_budget)
