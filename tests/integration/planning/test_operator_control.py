"""The planner honours what operators say: nothing is assigned while planning is paused, nothing to a drained worker."""

from collections import Counter
from dataclasses import replace

import pytest

from models.connections.session import make_sessions
from models.leasing.worker_registration import register
from models.notifications import ENDED, Notifications
from models.operations import fleet_use, operator_jobs, operator_overview
from models.operations.operator_jobs import JobFilter
from models.operations.window_stats import window_stats
from models.planning import live_fleet
from models.tables import RequestStatus
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.worker_facts import Loadable
from tasks.planning.leader import Leader
from tests.integration.database_stage import Stage, facts

FLAT = ServingCurves((0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, 0.5))


def test_a_paused_planner_assigns_nothing_until_it_is_resumed(stage: Stage, leader: Leader) -> None:
    stage.worker()
    stage.request("r1")
    with make_sessions(stage.database)() as session:
        operator_overview.set_paused(session, True)
        assert operator_overview.paused_since(session) is not None
        leader.step()
        assert stage.batches() == {}
        assert stage.requests("status") == {"r1": "queued"}
        operator_overview.set_paused(session, False)
        assert operator_overview.paused_since(session) is None
    leader.step()
    assert [ids for _, ids in stage.batches().values()] == [["r1"]]


def test_a_drained_worker_gets_no_batch_until_it_is_resumed(stage: Stage, leader: Leader) -> None:
    stage.worker("w1")
    stage.request("r1")
    with make_sessions(stage.database)() as session:
        assert fleet_use.set_drained(session, "w1", True)
        assert not fleet_use.set_drained(session, "nobody", True)
        leader.step()
        assert stage.batches() == {}
        assert fleet_use.set_drained(session, "w1", False)
    leader.step()
    assert [worker for worker, _ in stage.batches().values()] == ["w1"]


def test_a_restart_ends_a_drain_and_tells_the_version(stage: Stage) -> None:
    stage.worker("w1")
    with make_sessions(stage.database)() as session:
        fleet_use.set_drained(session, "w1", True)
        offer = facts(version="9.9")
        register(session.connection(), offer)
        session.commit()
        (worker,) = fleet_use.workers_in_use(session)
    assert (worker.state(10.0), worker.facts.version) == ("idle", "9.9")


def test_memory_counts_as_the_worker_holds_it(stage: Stage) -> None:
    for name, paged in (("ours", False), ("paged", True)):
        stage.worker(name)
        stage.sql(
            "update workers set facts = jsonb_set(facts, '{memory,paged}', to_jsonb(:paged)) where name = :name",
            paged=paged,
            name=name,
        )
        ((batch,),) = stage.sql(
            """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
                started_at, progress_tokens) values (:name, 'magnus', 'running', 2, 9, 9, 1, clock_timestamp(), 2)
            returning id""",
            name=name,
        )
        for n, prompt in enumerate((3, 8)):
            stage.request(f"{name}-{n}", prompt_tokens=prompt)
            stage.sql(
                "update requests set status = 'in_progress', batch_id = :b where id = :id", b=batch, id=f"{name}-{n}"
            )
    with make_sessions(stage.database)() as session:
        ours, paged_one = fleet_use.workers_in_use(session)
    # rows of 3 and 8 prompt tokens, 2 generated, at most 15
    assert (ours.load.held_tokens, ours.load.reserved_tokens) == (2 * (8 + 2), 2 * (8 + 15))
    assert (paged_one.load.held_tokens, paged_one.load.reserved_tokens) == (3 + 2 + 8 + 2, 3 + 15 + 8 + 15)
    stage.sql(
        """update workers set facts = jsonb_set(facts, '{memory}', facts->'memory'
            || '{"delta_bytes": 4, "windowed_bytes": 3, "window_tokens": 11}')"""
    )
    with make_sessions(stage.database)() as session:
        ours, paged_one = fleet_use.workers_in_use(session)
    # three of four layers hold eleven tokens of a row; rows in pages count as if they were equally long
    assert (ours.load.held_tokens, ours.load.reserved_tokens) == (20, (3 * 2 * 11 + 2 * 23) / 4)
    assert (paged_one.load.held_tokens, paged_one.load.reserved_tokens) == (15, round((3 * 2 * 11 + 18 + 23) / 4))


@pytest.mark.parametrize(("theta", "windowed", "window"), [(999, 0, 0), (999, 3, 50), (999, 3, 500), (999, 4, 50)])
def test_windows_of_a_worker_are_read_as_they_were_registered(
    stage: Stage, theta: int, windowed: int, window: int
) -> None:
    memory = KvMemory(theta, 4, windowed_bytes=windowed, window_tokens=window)
    loadable = {"large": Loadable(1.0, replace(memory, theta_bytes=2 * theta), FLAT)}
    with stage.database.begin() as connection:
        register(connection, replace(facts(loadable=loadable), memory=memory))
    with stage.database.begin() as connection:
        (worker,) = live_fleet.live_workers(connection, 10.0)
        assert (worker.memory, worker.loadable["large"].memory) == (memory, loadable["large"].memory)
        assert live_fleet.largest_workers([worker]) == {
            "small": memory.longest_row_tokens,
            "large": loadable["large"].memory.longest_row_tokens,
        }


def test_ten_thousand_jobs_are_cancelled_and_submitted_again_in_one_go(stage: Stage) -> None:
    stage.request("resp_0")
    stage.sql(
        """insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
            limit_tokens)
        select 'resp_' || n, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
            limit_tokens from requests, generate_series(1, 10500) as n"""
    )
    with make_sessions(stage.database)() as session:
        ids = operator_jobs.matching_jobs(session, JobFilter((RequestStatus.queued,), "acme", "copy"))
        assert len(ids) == operator_jobs.MOST_AT_ONCE + 1
        assert len(operator_jobs.cancel_jobs(session, ids[: operator_jobs.MOST_AT_ONCE])) == operator_jobs.MOST_AT_ONCE
        made = operator_jobs.submit_again(session, ids[: operator_jobs.MOST_AT_ONCE], 10)
        assert operator_jobs.submit_again(session, made[:3], 10) == []  # they wait: nothing to submit again
    assert len(set(made)) == operator_jobs.MOST_AT_ONCE
    counts = dict(map(tuple, stage.sql("select status, count(*) from requests group by status")))
    assert counts == {"cancelled": 10_000, "queued": 10_501}


def test_jobs_submitted_again_have_no_more_priority_than_the_quota_of_today(stage: Stage) -> None:
    for number in range(5):
        stage.request(f"resp_{number}", tier="priority")
    stage.request("resp_b", tenant="other", tier="priority")
    stage.request("resp_d")
    stage.sql("update requests set status = 'failed', finished_at = clock_timestamp() where id <> 'resp_4'")
    with make_sessions(stage.database)() as session:
        made = operator_jobs.submit_again(session, [*(f"resp_{number}" for number in range(4)), "resp_b", "resp_d"], 3)
    assert len(made) == 6
    tiers = stage.sql("select tenant, tier, count(*) from requests where status = 'queued' group by 1, 2")
    assert {row.tenant + " " + row.tier: row.count for row in tiers} == {
        "acme priority": 3,  # one of them waits already
        "acme default": 3,
        "other priority": 1,
    }


def test_the_waiting_requests_of_a_model_are_moved_from_their_beginning_or_cancelled(stage: Stage) -> None:
    for name, model in (("a", "gone"), ("b", "gone"), ("c", "small")):
        stage.request(name, model=model, generated_ids=[7, 8])
    stage.sql("update requests set status = 'in_progress' where id = 'b'")
    with make_sessions(stage.database)() as session:
        assert operator_jobs.move_waiting(session, "gone", "new") == 1
        session.commit()
    assert stage.requests("model", "predicted_tokens", "generated_ids", "planner_epoch") == {
        "a": ("new", None, [], 0),
        "b": ("gone", 10, [7, 8], 0),
        "c": ("small", 10, [7, 8], 0),
    }
    with make_sessions(stage.database)() as session:
        assert operator_jobs.cancel_waiting(session, "new") == ["a"]
    assert [row.id for row in stage.sql("select id from requests where status = 'cancelled'")] == ["a"]


def test_what_was_sent_and_not_begun_for_ten_seconds_waits(stage: Stage) -> None:
    stage.request("r1")
    batch = stage.sql(
        """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, assigned_at)
        values ('w1', 'fusion', 1, 1, 1, 1.0, clock_timestamp() - interval '12 s') returning id"""
    )[0].id
    stage.sql(
        """update requests set status = 'in_progress', batch_id = :batch,
            arrived_at = clock_timestamp() - interval '30 s'""",
        batch=batch,
    )
    with make_sessions(stage.database)() as session:
        counts, window = operator_overview.request_counts(session), window_stats(session)
    assert (counts.unstarted, counts.queued, counts.running, counts.assigned) == (1, 1, 0, 0)
    assert counts.oldest_s is not None
    assert counts.oldest_s >= 30
    assert (window.queued, window.in_progress) == (1, 0)
    stage.sql("update batches set status = 'running'")
    with make_sessions(stage.database)() as session:
        counts = operator_overview.request_counts(session)
    assert (counts.queued, counts.running) == (0, 1)


def test_calls_that_wait_for_a_job_hear_that_an_operator_cancelled_it(stage: Stage) -> None:
    for one in ("resp_1", "resp_2"):
        stage.request(one)
    listener = Notifications(stage.database, ENDED)
    try:
        with make_sessions(stage.database)() as session:
            assert operator_jobs.cancel_jobs(session, ["resp_1", "resp_unknown"]) == ["resp_1"]
        assert listener.wait(20) == ["resp_1"]
    finally:
        listener.close()


def test_what_was_not_to_be_stored_cannot_be_submitted_again(stage: Stage) -> None:
    stage.request("resp_1", input="", instructions="")
    stage.sql("update requests set status = 'failed', finished_at = clock_timestamp()")
    with make_sessions(stage.database)() as session:
        assert operator_jobs.submit_again(session, ["resp_1"], 10) == []


def test_the_rows_of_every_worker_are_listed_up_to_a_number(stage: Stage) -> None:
    for worker, rows in (("w1", fleet_use.MOST_OF_WORKER + 5), ("w2", 3)):
        ((batch,),) = stage.sql(
            """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, status,
                started_at) values (:worker, 'test', 1, 1, 1, 1.0, 'running', clock_timestamp()) returning id""",
            worker=stage.worker(worker),
        )
        for n in range(rows):
            stage.request(f"{worker}-{n}", status="in_progress", batch_id=batch)
    with make_sessions(stage.database)() as session:
        listed = Counter(row.worker for row in fleet_use.running_requests(session))
    assert listed == {"w1": fleet_use.MOST_OF_WORKER, "w2": 3}
