"""The judge of the promises notices what it is there for: answers lost, recorded twice, requests in two batches."""

from dataclasses import replace

from tests.chaos.exactly_once import WATCH, verdict
from tests.integration.database_stage import Stage

ANSWER = "update requests set status = 'completed', finished_at = clock_timestamp(), output_text = :text where id = :id"


def watched(stage: Stage) -> list[str]:
    """Two requests in a database whose writes are watched."""
    stage.sql(WATCH)
    return [stage.request("a"), stage.request("b")]


def test_requests_answered_once_are_neither_lost_nor_repeated(stage: Stage):
    ids = watched(stage)
    for each in ids:
        stage.sql(ANSWER, id=each, text="x")
    found = verdict(stage, ids)
    assert (found.lost, found.completed, found.rewritten, found.in_two_batches) == (0, 2, 0, 0)
    assert found.lost_row("p").ok
    assert found.once_row("p").ok


def test_a_request_that_waits_failed_or_is_not_there_is_lost(stage: Stage):
    ids = watched(stage)
    stage.sql("update requests set status = 'failed', finished_at = clock_timestamp() where id = 'a'")
    found = verdict(stage, [*ids, "never stored"])
    assert (found.failed, found.missing, found.lost) == (1, 2, 3)
    assert not found.lost_row("p").ok


def test_an_answer_that_is_written_again_is_noticed_even_if_it_is_the_same(stage: Stage):
    ids = watched(stage)
    for _ in range(2):
        stage.sql(ANSWER, id="a", text="x")
    assert verdict(stage, ids).rewritten == 1
    assert not verdict(stage, ids).once_row("p").ok


def test_a_request_taken_into_a_second_batch_while_it_runs_is_noticed(stage: Stage):
    ids = watched(stage)
    for batch in (1, 2):
        stage.sql("update requests set status = 'in_progress', batch_id = :batch where id = 'a'", batch=batch)
    assert verdict(stage, ids).in_two_batches == 1


def test_a_request_that_went_back_to_the_queue_may_go_into_another_batch(stage: Stage):
    ids = watched(stage)
    for batch in (1, 2):
        stage.sql("update requests set status = 'in_progress', batch_id = :batch where id = 'a'", batch=batch)
        stage.sql("update requests set status = 'queued' where id = 'a'")
    assert verdict(stage, ids).in_two_batches == 0


def test_nothing_accepted_is_no_success(stage: Stage):
    watched(stage)
    nothing = replace(verdict(stage, ["a"]), accepted=0, missing=0)
    assert not nothing.lost_row("p").ok
