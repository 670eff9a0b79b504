import pytest

from models.leasing.batch_results import BatchEnded, RowReturned
from models.tables import BatchStatus
from tasks.serving.batches.static_batch import StaticBatch
from tasks.serving.results.engine_events import EngineEvent, RowEnded
from tests.unit.tasks.serving.tiny_engine import PROMPT, TinyEngine, job, out_of_memory, row


def nothing() -> None:
    return None


def test_each_row_is_recorded_with_its_answer_and_then_the_batch():
    events: list[EngineEvent] = []
    StaticBatch(TinyEngine(), job(1, row("a", 2), row("b", 3)), events.append).serve(nothing)
    first, second, batch = events
    assert [(e.ended.id, len(e.ended.generated_ids)) for e in (first, second) if isinstance(e, RowEnded)] == [
        ("a", 2),
        ("b", 3),
    ]
    assert isinstance(batch, BatchEnded)
    assert (batch.status, batch.figures is not None and batch.figures.iterations) == (BatchStatus.finished, 3)


def test_rows_that_the_iteration_limit_stops_go_back_with_their_tokens():
    events: list[EngineEvent] = []
    StaticBatch(TinyEngine(), job(1, row("a", 9), iteration_limit=4), events.append).serve(nothing)
    returned, batch = events
    assert isinstance(returned, RowReturned)
    assert len(returned.generated_ids) == 4
    assert isinstance(batch, BatchEnded)


def test_a_batch_beyond_the_memory_ends_as_out_of_memory():
    events: list[EngineEvent] = []
    engine = TinyEngine()
    engine.device.error = out_of_memory()
    StaticBatch(engine, job(1, row("a")), events.append).serve(nothing)
    assert [(type(e), e.status) for e in events if isinstance(e, BatchEnded)] == [
        (BatchEnded, BatchStatus.out_of_memory)
    ]


def test_a_removed_row_is_recorded_once_and_the_others_go_on():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a"), row("b")), events.append)
    batch.serve(lambda: batch.remove(frozenset({"a", "elsewhere"})))
    ended = [(e.ended.id, e.ended.reason) for e in events if isinstance(e, RowEnded)]
    assert ended == [("a", "removed"), ("b", "limit")]


def test_an_abandoned_batch_records_nothing():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a", 50)), events.append)
    batch.serve(lambda: batch.abandon(frozenset({1})))
    assert events == []


def test_another_batchs_lost_lease_changes_nothing():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a")), events.append)
    batch.serve(lambda: batch.abandon(frozenset({2})))
    assert len(events) == 2


def test_returned_rows_are_recorded_once():
    events: list[EngineEvent] = []
    batch = StaticBatch(TinyEngine(), job(1, row("a", 50)), events.append)
    batch.serve(batch.return_rows)
    returned, ended = events
    assert isinstance(returned, RowReturned)
    assert len(returned.generated_ids) == 1
    assert isinstance(ended, BatchEnded)


def test_a_batch_without_servable_requests_ends_at_once():
    events: list[EngineEvent] = []
    StaticBatch(TinyEngine(), job(1), events.append).serve(nothing)
    assert [type(event) for event in events] == [BatchEnded]


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
