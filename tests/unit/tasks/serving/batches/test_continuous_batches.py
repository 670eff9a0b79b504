from typing import Any

from models.leasing.batch_results import BatchEnded, RowReturned
from models.tables import BatchStatus
from tasks.serving.batches.continuous_batches import ContinuousBatches
from tasks.serving.results.engine_events import EngineEvent, RowEnded
from tests.unit.tasks.serving.tiny_engine import TinyEngine, job, out_of_memory, row


class Setting:
    """Continuous batches on a tiny engine, and what they recorded."""

    def __init__(self, most_rows: int = 100, model: str = "llama") -> None:
        self.events: list[EngineEvent] = []
        self.engine = TinyEngine(most_rows, model)
        self.batches = ContinuousBatches(self.engine, lambda *events: self.events.extend(events))

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def drain(self) -> None:
        while self.batches.open:
            self.batches.step()


def test_each_batch_ends_with_its_own_last_row():
    setting = Setting()
    setting.batches.admit(job(1, row("long", 6), joins=True))
    setting.batches.step()
    setting.batches.admit(job(2, row("short", 2), row("shorter", 1), joins=True))
    setting.drain()
    assert [event.lease.batch_id for event in setting.of(BatchEnded)] == [2, 1]
    figures = {event.lease.batch_id: event.figures for event in setting.of(BatchEnded)}
    assert (figures[2].valid_tokens, figures[2].generation_length) == (3, 2)
    assert 2 <= figures[2].iterations <= 4  # the prompts of both take one to three passes
    assert (figures[1].valid_tokens, figures[1].generation_length, figures[1].iterations) == (6, 6, 6)


def test_when_rows_outgrow_the_memory_the_one_that_joined_last_goes_back():
    setting = Setting()
    setting.batches.admit(job(1, row("first", 6), joins=True))
    setting.batches.admit(job(2, row("second", 6), joins=True))
    setting.batches.step()
    setting.batches.step()  # has the rest of the second prompt
    setting.engine.device.error = out_of_memory()
    setting.batches.step()
    assert [(event.request_id, len(event.generated_ids)) for event in setting.of(RowReturned)] == [("second", 1)]
    setting.drain()
    assert [event.ended.id for event in setting.of(RowEnded)] == ["first"]


def test_joiners_wait_while_memory_is_short_until_a_row_has_left():
    setting, joiners = Setting(most_rows=2), job(2, row("c", 2), row("d", 2), joins=True)
    setting.batches.admit(job(1, row("a", 2), row("b", 4), joins=True))
    assert not setting.batches.admit(joiners)
    assert not setting.batches.may_join(joiners)
    while not setting.of(RowEnded):
        setting.batches.step()
    assert setting.batches.may_join(joiners)
    assert not setting.batches.admit(joiners)  # one row has left, and both need to
    setting.drain()
    assert setting.batches.admit(joiners)
    assert [event.status for event in setting.of(BatchEnded)] == [BatchStatus.finished]


def test_joiners_for_which_the_device_has_no_memory_go_back_and_others_wait_until_half_of_the_rows_have_left():
    setting, joiner = Setting(model="gpt2"), job(3, row("e"), joins=True)  # it prefills joiners at once
    rows = [row(f"of {limit}", limit) for limit in (3, 5, 7, 9)]
    setting.batches.admit(job(1, *rows, joins=True))
    setting.engine.device.error = out_of_memory()
    assert setting.batches.admit(job(2, row("x"), row("y"), joins=True))
    assert [(event.lease.batch_id, event.status, event.failure) for event in setting.of(BatchEnded)] == [
        (2, BatchStatus.lost, None)
    ]
    could_join = {}
    while setting.batches.open:
        could_join[len(setting.of(RowEnded))] = setting.batches.may_join(joiner)
        setting.batches.step()
    assert could_join == {0: False, 1: False, 2: True, 3: True}


def test_a_row_that_outgrew_the_memory_leaves_it_to_the_rows_beside_it():
    setting, joiner = Setting(), job(2, row("d"), joins=True)
    setting.batches.admit(job(1, row("a", 4), row("b", 6), row("c", 9), joins=True))
    setting.engine.device.error = out_of_memory()
    setting.batches.step()
    assert [event.request_id for event in setting.of(RowReturned)] == ["c"]
    assert not setting.batches.may_join(joiner)
    while not setting.of(RowEnded):
        setting.batches.step()
    assert setting.batches.may_join(joiner)


def test_batches_that_make_way_or_have_no_rows_left_need_not_wait_for_memory():
    setting, joiner = Setting(most_rows=2), job(2, row("c"), row("d"), joins=True)
    setting.batches.admit(job(1, row("a", 9), row("b", 9), joins=True))
    assert not setting.batches.admit(joiner)
    assert setting.batches.may_join(job(3, row("e"), joins=True, preempts=["b"]))
    joiner.sequences = ()  # all are cancelled
    assert setting.batches.may_join(joiner)
    setting.batches.admit(joiner)
    assert [event.lease.batch_id for event in setting.of(BatchEnded)] == [2]
    assert not setting.batches.may_join(job(4, row("f"), joins=True))


def test_the_last_row_that_outgrows_the_memory_goes_back_with_its_tokens_for_a_larger_worker():
    setting = Setting()
    setting.batches.admit(job(1, row("a"), joins=True))
    setting.engine.device.error = out_of_memory()
    setting.batches.step()
    assert [(event.request_id, len(event.generated_ids), event.outgrew) for event in setting.of(RowReturned)] == [
        ("a", 1, True)
    ]
    assert setting.batches.open == []


def test_abandoned_rows_leave_the_engine_without_an_answer():
    setting = Setting()
    setting.batches.admit(job(1, row("a", 9), joins=True))
    setting.batches.admit(job(2, row("b", 2), joins=True))
    setting.batches.abandon(frozenset({1}))
    setting.drain()
    assert [event.ended.id for event in setting.of(RowEnded)] == ["b"]
    assert "a" not in setting.engine.rows


def test_a_request_that_comes_again_while_its_lost_row_still_runs_replaces_it():
    setting = Setting()
    setting.batches.admit(job(1, row("a", 9), joins=True))
    setting.batches.step()
    setting.batches.admit(job(2, row("a", 2), joins=True))
    setting.drain()
    assert [(e.lease.batch_id, len(e.ended.generated_ids)) for e in setting.of(RowEnded)] == [(2, 2)]


def test_rows_that_make_way_leave_slots_for_the_joiners():
    setting = Setting()
    setting.batches.admit(job(1, row("a", 9), row("b", 9), joins=True))
    assert setting.batches.may_join(job(2, row("c"), joins=True, most_rows=2, preempts=["a", "elsewhere"]))
    assert not setting.batches.may_join(job(2, row("c"), row("d"), joins=True, most_rows=2, preempts=["a"]))


def test_returned_rows_leave_nothing_open():
    setting = Setting()
    setting.batches.admit(job(1, row("a", 9), row("b", 9), joins=True))
    setting.batches.return_rows()
    assert {event.request_id for event in setting.of(RowReturned)} == {"a", "b"}
    assert setting.batches.open == []


def test_the_seconds_with_rows_are_divided_among_them():
    setting = Setting()
    setting.batches.admit(job(1, row("a", 9), row("b", 2), joins=True))
    setting.batches.step()
    setting.batches.admit(job(2, row("c", 3), joins=True, preempts=["a"]))
    setting.drain()
    answered = {event.ended.id: event.gpu_s for event in setting.of(RowEnded)}
    (returned,) = setting.of(RowReturned)
    assert answered.keys() == {"b", "c"}
    assert min(*answered.values(), returned.gpu_s) > 0
    figures = [event.figures for event in setting.of(BatchEnded)]
    assert returned.gpu_s + sum(answered.values()) <= sum(one.serving_s for one in figures)
