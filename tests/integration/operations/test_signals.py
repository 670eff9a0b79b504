"""The signals for scaling and the histograms over answered requests, as `chores` makes them and a scrape reads them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from models.bulk.bulk_outlook import read_bulk_outlook
from models.connections.session import make_sessions
from models.operations import request_histograms
from models.operations.request_histograms import HISTOGRAMS
from models.operations.scaling_signals import ScalingSignal, read_signals
from models.planning.queue_snapshot import Decisions, QueueSnapshot, write_queue_snapshot
from tasks.chores.scaling_signals import ScalingMeter
from tests.integration.database_stage import MODEL, Stage


def signals(stage: Stage, target_s: float = 30.0) -> dict[str, ScalingSignal]:
    ScalingMeter(stage.database, alive_s=10.0, target_s=target_s).measure_if_due()
    with make_sessions(stage.database)() as session:
        return read_signals(session)


def waits(stage: Stage, count: int, prefix: str = "r", **columns: Any) -> None:
    for number in range(count):
        stage.request(f"{prefix}{number}", prompt_tokens=60, predicted_tokens=40, limit_tokens=100, **columns)


def insert_job(stage: Stage, endpoint: str) -> None:
    stage.sql(
        """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
            expires_at, left_work) values ('batch_1', 'acme', :endpoint, 'f', '24h', 'in_progress', 2000, 2000,
            clock_timestamp() + interval '1 day', '{"requests": 2000, "prefill": 120000, "remaining": 80000,
            "longest": 60}')""",
        endpoint=endpoint,
    )


def test_a_fleet_without_requests_has_no_work_and_wants_no_worker(stage: Stage) -> None:
    stage.worker()
    assert signals(stage) == {MODEL: ScalingSignal(0.0, 0)}


def test_what_waits_is_work_and_what_runs_or_is_held_is_not(stage: Stage) -> None:
    stage.worker()
    waits(stage, 20)
    found = signals(stage)[MODEL]
    assert found.work_s > 0
    assert found.wanted == 1
    waits(stage, 20, "held", held=True)
    waits(stage, 3, "runs", status="in_progress")
    assert signals(stage)[MODEL].work_s == found.work_s


def test_a_shorter_target_wants_more_workers_for_the_same_work(stage: Stage) -> None:
    stage.worker(kv_tokens=200)  # two rows at once
    waits(stage, 40)
    patient, hasty = signals(stage)[MODEL], signals(stage, target_s=1.0)[MODEL]
    assert patient.work_s == hasty.work_s
    assert patient.wanted < hasty.wanted


def test_tokens_that_a_request_has_already_are_no_work(stage: Stage) -> None:
    stage.worker(kv_tokens=200)
    waits(stage, 1)
    whole = signals(stage)[MODEL].work_s
    stage.sql("update requests set generated_ids = array_fill(7, array[30])")
    assert signals(stage)[MODEL].work_s < whole


def test_a_model_is_scaled_by_the_speed_that_its_last_workers_had(stage: Stage) -> None:
    stage.worker(kv_tokens=200)
    waits(stage, 40)
    served = signals(stage)
    stage.sql("update workers set stopped_at = clock_timestamp(), heartbeat_at = clock_timestamp() - interval '3 h'")
    assert signals(stage) == served


def test_requests_of_a_model_without_any_known_worker_want_one(stage: Stage) -> None:
    stage.worker(model="another")
    waits(stage, 40)
    assert signals(stage) == {MODEL: ScalingSignal(0.0, 1), "another": ScalingSignal(0.0, 0)}


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/embeddings"])
def test_lines_of_bulk_jobs_that_were_not_read_yet_are_work_that_has_until_the_jobs_end(
    stage: Stage, endpoint: str
) -> None:
    stage.worker(kv_tokens=200)
    insert_job(stage, endpoint)
    waits(stage, 1, job_id="batch_1")
    stage.sql("insert into bulk_lines (job_id, line, custom_id, request_id) values ('batch_1', 1, 'one', 'r0')")
    found = signals(stage)[MODEL]
    assert found.work_s > 100
    assert found.wanted == 1
    with make_sessions(stage.database)() as session:  # batches of another model do not wait for it
        assert [len(read_bulk_outlook(session, model, 10.0).left) for model in (MODEL, "another")] == [1, 0]
    stage.sql("update bulk_jobs set expires_at = clock_timestamp() + interval '30 s'")
    assert signals(stage)[MODEL].wanted > 4
    stage.sql("update bulk_jobs set paused_at = clock_timestamp()")
    assert signals(stage)[MODEL] == ScalingSignal(0.0, 0)


def test_what_waits_for_a_new_budget_wants_no_worker(stage: Stage) -> None:
    stage.worker(kv_tokens=200)
    waits(stage, 3, "runs", status="in_progress")
    running = signals(stage)
    waits(stage, 40)
    waits(stage, 40, "flex", tier="flex")
    insert_job(stage, "/v1/responses")
    waits(stage, 1, "line", job_id="batch_1")
    stage.sql("insert into bulk_lines (job_id, line, custom_id, request_id) values ('batch_1', 1, 'one', 'line0')")
    assert signals(stage)[MODEL].work_s > running[MODEL].work_s + 100
    with stage.database.begin() as connection:
        decisions = Decisions(spent_tenants=("acme",))
        write_queue_snapshot(connection, QueueSnapshot(at=datetime.now(UTC), decisions=decisions))
    assert signals(stage)[MODEL] == ScalingSignal(0.0, 1)  # for what runs
    waits(stage, 40, "other", tenant="other")
    assert signals(stage)[MODEL].work_s > 0


def test_a_request_of_the_tier_flex_wants_no_hurry(stage: Stage) -> None:
    stage.worker(kv_tokens=200)
    waits(stage, 200, tier="flex")
    assert signals(stage, target_s=1.0)[MODEL].wanted == 1


def test_what_arrived_lately_counts_though_it_is_answered(stage: Stage) -> None:
    stage.worker(kv_tokens=200)
    waits(stage, 100, status="completed", output_tokens=40, finished_at="now")
    found = signals(stage)[MODEL]
    assert (found.work_s, found.wanted) == (0.0, 1)
    stage.sql("update requests set arrived_at = clock_timestamp() - interval '3 min'")
    assert signals(stage)[MODEL].wanted == 0


def test_old_signals_are_not_shown(stage: Stage) -> None:
    stage.worker()
    assert signals(stage)
    stage.sql("update service_state set updated_at = updated_at - interval '3 min' where name = 'scaling'")
    with make_sessions(stage.database)() as session:
        assert read_signals(session) == {}


# histograms


def answered(stage: Stage, id: str, ended_ago_s: float = 30.0, **columns: Any) -> None:
    """A request that waited for 2 s, had its first token 0.5 s later, and the last of its 11 tokens 5 s after that."""
    usual: dict[str, Any] = {"status": "completed", "output_tokens": 11, "predicted_tokens": 11, "finished_at": "now"}
    columns = usual | columns
    stage.request(id, **columns)
    stage.sql(
        """update requests set arrived_at = ends.at - interval '7.5 s', started_at = ends.at - interval '5.5 s',
            first_token_at = case when :tokens > 0 then ends.at - interval '5 s' end, finished_at = ends.at
        from (select clock_timestamp() - make_interval(secs => :ago) as at) as ends where id = :id""",
        id=id,
        ago=ended_ago_s,
        tokens=columns["output_tokens"],
    )


def counted(stage: Stage) -> dict[str, dict[tuple[str, ...], tuple[list[int], float]]]:
    """The histograms by name and labels: the counts of their buckets, and their sums."""
    with make_sessions(stage.database)() as session:
        while request_histograms.count_ended(session):
            pass
        found: dict[str, dict[tuple[str, ...], tuple[list[int], float]]] = {name: {} for name in HISTOGRAMS}
        for one in request_histograms.read(session):
            found[one.name][tuple(one.labels)] = list(one.counts), round(one.sum, 3)
    return found


@pytest.fixture
def counting(stage: Stage) -> Stage:
    """A service that counts since ten minutes ago."""
    counted(stage)
    stage.worker()
    stage.sql(
        """update service_state set value = jsonb_build_object('until', clock_timestamp() - interval '10 min')
        where name = 'histograms'"""
    )
    return stage


def test_an_answered_request_is_in_every_histogram_once(counting: Stage) -> None:
    answered(counting, "r1")
    for found in (counted(counting), counted(counting)):
        sums = {name: of_name[MODEL, "1", "default"][1] for name, of_name in found.items()}
        assert sums == {
            "time_to_first_token_seconds": 2.5,
            "request_queue_time_seconds": 2.0,
            "e2e_request_latency_seconds": 7.5,
            "request_time_per_output_token_seconds": 0.5,
            "prediction_error_ratio": 1.0,
        }
        assert {sum(of_name[MODEL, "1", "default"][0]) for of_name in found.values()} == {1}


def test_a_value_on_an_edge_is_in_the_bucket_that_ends_there(counting: Stage) -> None:
    answered(counting, "r1")
    ((counts, _),) = counted(counting)["prediction_error_ratio"].values()
    assert counts.index(1) == HISTOGRAMS["prediction_error_ratio"].edges.index(1)
    ((counts, _),) = counted(counting)["e2e_request_latency_seconds"].values()
    assert counts.index(1) == HISTOGRAMS["e2e_request_latency_seconds"].edges.index(10)


def test_what_a_request_lacks_is_in_no_histogram(counting: Stage) -> None:
    answered(counting, "cut", status="incomplete")  # cut off, so its true length is not known
    answered(counting, "one", output_tokens=0, predicted_tokens=None)  # nothing was generated, nothing predicted
    found = counted(counting)
    assert found["prediction_error_ratio"] == {}
    assert sum(found["e2e_request_latency_seconds"][MODEL, "1", "default"][0]) == 2
    assert sum(found["time_to_first_token_seconds"][MODEL, "1", "default"][0]) == 1


def test_labels_are_models_that_are_served_weights_of_tenants_and_tiers(counting: Stage) -> None:
    for number in range(12):
        counting.sql("insert into tenants (name, weight) values (:name, :weight)", name=f"t{number}", weight=number + 2)
        answered(counting, f"r{number}", tenant=f"t{number}")
    answered(counting, "typo", model="mistyped")
    answered(counting, "line", job_id="batch_1", tier="flex")
    answered(counting, "flex", tier="flex")
    answered(counting, "soon", tier="priority")
    labels = set(counted(counting)["e2e_request_latency_seconds"])
    heavy = {(MODEL, str(weight), "default") for weight in range(6, 14)}
    others = {(MODEL, "other", "default"), ("other", "1", "default")}
    assert labels == heavy | others | {(MODEL, "1", tier) for tier in ("batch", "flex", "priority")}


def test_what_is_just_being_written_is_counted_later_and_after_a_pause_all_is(counting: Stage) -> None:
    for number, ago_s in enumerate((590.0, 300.0, 30.0, 1.0)):
        answered(counting, f"r{number}", ago_s)
    ((counts, _),) = counted(counting)["e2e_request_latency_seconds"].values()
    assert sum(counts) == 3
    counting.sql("update requests set finished_at = clock_timestamp() - interval '6 s' where id = 'r3'")
    counting.sql(
        """update service_state set value = jsonb_build_object('until', clock_timestamp() - interval '8 s')
        where name = 'histograms'"""
    )
    ((counts, _),) = counted(counting)["e2e_request_latency_seconds"].values()
    assert sum(counts) == 4


def test_what_ended_before_the_first_count_is_left_out(stage: Stage) -> None:
    stage.worker()
    answered(stage, "r1")
    assert not any(counted(stage).values())
    assert not any(counted(stage).values())
