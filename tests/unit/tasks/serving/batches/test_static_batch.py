import pytest

from models.leasing.batch_results import BatchEnded, RowReturned
from tasks.serving.batches.static_batch import StaticBatch
from tasks.serving.results.engine_events import EngineEvent, RowEnded
from tests.unit.tasks.serving.tiny_engine import PROMPT, TinyEngine, job, row


def nothing() -> None:
    return None


def test_an_abandoned_batch_records_nothing():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a", 50)), events.append)
    batch.serve(lambda: batch.abandon(frozenset({1})))
    assert events == []


def test_returned_rows_are_recorded_once():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a", 50)), events.append)
    batch.serve(batch.return_rows)
    returned, ended = events
    assert isinstance(returned, RowReturned)
    assert len(returned.generated_ids) == 1
    assert isinstance(ended, BatchEnded)


def test_the_batchs_seconds_are_divided_among_all_its_rows_by_their_tokens():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("gone"), row("a", 3), row("b", 8), iteration_limit=5), events.append)
    batch.serve(lambda: batch.remove(frozenset({"gone"})))
    gpu_s = {event.ended.id: event.gpu_s for event in events if isinstance(event, RowEnded)}
    gpu_s |= {event.request_id: event.gpu_s for event in events if isinstance(event, RowReturned)}
    (ended,) = [event for event in events if isinstance(event, BatchEnded)]
    assert ended.figures is not None
    assert sum(gpu_s.values()) == pytest.approx(ended.figures.serving_s)
    assert gpu_s["b"] / gpu_s["a"] == pytest.approx((len(PROMPT) + 5) / (len(PROMPT) + 3))
