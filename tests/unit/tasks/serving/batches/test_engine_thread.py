"""The thread's loop, run in the test's own thread: it returns once it was stopped and nothing is left to serve."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import pytest
import structlog

from inference.engine_requests import DecodingRequest
from models.leasing.batch_results import BatchBegan, BatchEnded, RowReturned
from models.leasing.requeue import Failure
from models.tables import BatchStatus
from tasks.serving.batches.engine_thread import EngineThread
from tasks.serving.results.engine_events import EngineEvent, RowEnded
from tasks.serving.results.live_tokens import LiveRows, StepTokens
from tests.unit.tasks.serving.tiny_engine import TinyEngine, job, row


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class Setting:
    """A thread that is asked to stop as soon as the last of `batches` has ended."""

    def __init__(self, batches: int, failing: bool = False, most_rows: int = 100, memory_wait_s: float = 1e3) -> None:
        self.events: list[EngineEvent] = []
        self.steps: list[StepTokens] = []  # what was passed on of rows that somebody reads
        self.left, self.failing, self.made, self.most_rows = batches, failing, 0, most_rows
        self.thread = EngineThread(self.make_engine, self.record, LiveRows(self.steps.append), memory_wait_s)

    def make_engine(self) -> TinyEngine:
        self.made += 1
        engine = self.engine = TinyEngine(self.most_rows)
        engine.device.error = RuntimeError("a broken device") if self.failing else None
        return engine

    def record(self, *events: EngineEvent) -> None:
        self.events += events
        self.left -= sum(isinstance(event, BatchEnded) for event in events)
        if not self.left and not self.thread.stopping:
            self.thread.stop(within_s=1000.0)

    def failures(self) -> list[Failure | None]:
        return [event.failure for event in self.events if isinstance(event, BatchEnded)]

    def ended(self) -> list[tuple[int, BatchStatus]]:
        return [(event.lease.batch_id, event.status) for event in self.events if isinstance(event, BatchEnded)]


def test_rows_sent_ahead_join_one_by_one_as_rows_leave():
    setting = Setting(batches=4)
    setting.thread.submit(job(1, row("a", limit=3), row("b", limit=5), joins=True, most_rows=2))
    for number, name in enumerate("cde", start=2):
        setting.thread.submit(job(number, row(name, limit=4), joins=True, most_rows=2))
    setting.thread.run()
    order = [
        event.ended.id if isinstance(event, RowEnded) else event.lease.batch_id
        for event in setting.events
        if isinstance(event, BatchBegan | RowEnded)
    ]
    assert order == [1, "a", 2, "b", 3, "c", 4, "d", "e"]
    assert {status for _, status in setting.ended()} == {BatchStatus.finished}


def test_a_batch_for_which_memory_is_short_joins_once_rows_have_left():
    setting = Setting(batches=2, most_rows=2)
    setting.thread.submit(job(1, row("a", limit=3), row("b", limit=5), joins=True))
    setting.thread.submit(job(2, row("c", limit=2), row("d", limit=2), joins=True))
    setting.thread.run()
    assert [event.ended.id for event in setting.events if isinstance(event, RowEnded)] == ["a", "b", "c", "d"]
    assert setting.ended() == [(1, BatchStatus.finished), (2, BatchStatus.finished)]


def test_a_batch_that_has_waited_too_long_for_memory_goes_back_unblamed_with_all_that_wait_behind_it():
    setting = Setting(batches=3, most_rows=2, memory_wait_s=0.0)
    setting.thread.submit(job(1, row("a", limit=3), row("b", limit=5), joins=True))
    setting.thread.submit(job(2, row("c"), row("d"), joins=True))
    setting.thread.submit(job(3, row("e"), joins=True))
    setting.thread.run()
    assert setting.ended() == [(2, BatchStatus.lost), (3, BatchStatus.lost), (1, BatchStatus.finished)]
    assert setting.failures() == [None] * 3
    assert [event.lease.batch_id for event in setting.events if isinstance(event, BatchBegan)] == [1]


def test_a_prefill_that_goes_on_is_no_stall_and_one_that_hangs_is():
    setting = Setting(batches=1)
    assert setting.thread.silent_s() == 0  # nothing is served
    setting.thread.last_step_at = monotonic() - 100
    assert setting.thread.silent_s() >= 100
    setting.engine.insert([row("a")])  # passes all layers before the first step ends
    assert setting.thread.silent_s() < 50
    setting.engine.step()
    assert setting.thread.silent_s() > 0  # decoding counts by its steps


def test_static_batches_run_one_after_the_other():
    setting = Setting(batches=2)
    setting.thread.submit(job(1, row("a")))
    setting.thread.submit(job(2, row("b")))
    setting.thread.run()
    order = [(type(event), event.lease.batch_id) for event in setting.events if not isinstance(event, RowEnded)]
    assert order == [(BatchBegan, 1), (BatchEnded, 1), (BatchBegan, 2), (BatchEnded, 2)]
    assert setting.thread.steps == 6


def test_a_static_batch_waits_until_no_joined_row_is_left():
    setting = Setting(batches=2)
    setting.thread.submit(job(1, row("a", 4), joins=True))
    setting.thread.submit(job(2, row("b", 1)))
    setting.thread.run()
    assert [batch_id for batch_id, _ in setting.ended()] == [1, 2]


def test_a_batch_on_which_the_engine_fails_is_lost_and_the_next_one_gets_a_new_engine():
    setting = Setting(batches=2, failing=True)
    setting.failing = False  # only the first engine fails
    setting.thread.submit(job(1, row("a")))
    setting.thread.submit(job(2, row("b")))
    setting.thread.run()
    assert setting.ended() == [(1, BatchStatus.lost), (2, BatchStatus.finished)]
    assert setting.failures() == [Failure(1, "RuntimeError"), None]
    assert setting.made == 2


def test_all_batches_that_an_engine_had_share_its_failure():
    setting = Setting(batches=2)
    first_engine = setting.engine
    record = setting.record

    def fail_on_the_joiner(*events: EngineEvent) -> None:
        record(*events)
        if isinstance(events[0], BatchBegan) and events[0].lease.batch_id == 2:
            first_engine.device.error = RuntimeError("in the prefill of the second")

    engines = iter([first_engine, TinyEngine()])
    setting.thread = EngineThread(lambda: next(engines), fail_on_the_joiner, LiveRows(setting.steps.append))
    setting.thread.submit(job(1, row("a", 9), joins=True))
    setting.thread.submit(job(2, row("b"), joins=True))
    setting.thread.run()
    assert setting.ended() == [(1, BatchStatus.lost), (2, BatchStatus.lost)]
    assert setting.failures() == [Failure(1, "RuntimeError")] * 2


def test_a_device_that_does_not_work_with_a_new_engine_either_ends_the_thread_and_no_request_is_to_blame():
    setting = Setting(batches=-1, failing=True)
    for n in (1, 2):
        setting.thread.submit(job(n, row(f"r{n}")))
    setting.thread.run()
    assert setting.ended() == [(1, BatchStatus.lost), (2, BatchStatus.lost)]
    assert setting.failures() == [Failure(1, error=None), None]
    assert not setting.thread.stopping


def test_a_stopped_thread_returns_what_is_queued_and_what_is_submitted_later():
    setting = Setting(batches=-1)
    setting.thread.submit(job(1, row("a")))
    setting.thread.stop(within_s=0.0)
    setting.thread.submit(job(2, row("b")))
    setting.thread.run()
    assert setting.ended() == [(1, BatchStatus.lost), (2, BatchStatus.lost)]
    assert setting.failures() == [None, None]


@pytest.mark.parametrize("joins", [False, True])
def test_what_is_queued_goes_back_at_once_while_rows_may_still_run(joins: bool):
    setting = Setting(batches=-1)
    record = setting.record

    def stop_at_the_first_row(*events: EngineEvent) -> None:
        record(*events)
        if isinstance(events[0], BatchBegan):
            setting.thread.stop(within_s=1000.0)

    setting.thread = EngineThread(setting.make_engine, stop_at_the_first_row, LiveRows(setting.steps.append))
    setting.thread.submit(job(1, row("a", 5), joins=joins))
    setting.thread.submit(job(2, row("b"), joins=joins))
    setting.thread.run()
    assert setting.ended() == [(2, BatchStatus.lost), (1, BatchStatus.finished)]
    assert [event.ended.id for event in setting.events if isinstance(event, RowEnded)] == ["a"]


@pytest.mark.parametrize("joins", [False, True])
def test_rows_go_back_beside_a_step_that_takes_too_long_with_the_tokens_before_it(joins: bool):
    setting = Setting(batches=-1)

    def give_back_in_the_fourth_step() -> None:
        if setting.engine.rows.get("a") == 4 and not setting.thread.stopping:
            setting.thread.stop(within_s=0.0)
            setting.thread.give_back_late()

    setting.engine.device.before_pass = give_back_in_the_fourth_step
    rows = row("a", 50), replace(row("b", 50), generated_ids=(4,) * 9)
    setting.thread.submit(job(1, *rows, joins=joins))
    setting.thread.run()
    early = [event for event in setting.events if isinstance(event, RowReturned)][:2]
    (a, b), _ = TinyEngine().run(rows)
    assert [event.generated_ids for event in early] == [a.generated_ids[:3], b.generated_ids[: 9 + 3]]
    assert setting.ended()[0] == (1, BatchStatus.lost)


def test_rows_that_still_run_when_the_time_is_over_go_back_with_their_tokens():
    setting = Setting(batches=-1)
    record = setting.record

    def stop_at_once(*events: EngineEvent) -> None:
        record(*events)
        if isinstance(events[0], BatchBegan):
            setting.thread.stop(within_s=0.0)

    setting.thread = EngineThread(setting.make_engine, stop_at_once, LiveRows(setting.steps.append))
    setting.thread.submit(job(1, row("a", 50)))
    setting.thread.run()
    assert [len(e.generated_ids) for e in setting.events if isinstance(e, RowReturned)] == [1]


def test_a_queued_request_that_is_cancelled_never_runs():
    setting = Setting(batches=2)
    setting.thread.submit(job(1, row("a")))
    setting.thread.submit(job(2, row("b"), row("c")))
    setting.thread.remove(frozenset({"b"}))
    setting.thread.run()
    ended = {
        e.ended.id: (e.ended.reason, len(e.ended.generated_ids)) for e in setting.events if isinstance(e, RowEnded)
    }
    assert ended == {"a": ("limit", 3), "b": ("removed", 0), "c": ("limit", 3)}


def test_an_abandoned_batch_that_is_queued_is_dropped():
    setting = Setting(batches=1)
    setting.thread.submit(job(1, row("a")))
    setting.thread.submit(job(2, row("b")))
    setting.thread.abandon(frozenset({2}))
    setting.thread.run()
    assert {event.lease.batch_id for event in setting.events} == {1}


def test_progress_is_what_the_row_that_gained_most_has_gained_since_its_batch_began():
    setting = Setting(batches=2)
    resumed = job(1, replace(row("a", 9), generated_ids=(5,) * 4), row("b", 3), joins=True)
    assert setting.thread.progress(resumed) == 0
    setting.engine.insert([one for one in resumed.sequences if isinstance(one, DecodingRequest)])
    assert setting.thread.progress(resumed) == 1  # its prefill gives each row a token
    setting.engine.step()
    assert setting.thread.progress(resumed) == 2
    assert setting.thread.progress(job(2, row("c"))) == 0
