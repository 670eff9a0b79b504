"""Processes write heartbeats, fall silent when they are stuck, and are missed by name in /readyz, stats, metrics."""

from datetime import UTC, datetime
from threading import Event, Thread

import pytest

from models.operations import process_heartbeats
from models.planning.queue_snapshot import QueueSnapshot, write_queue_snapshot
from processes import signs_of_life
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage, eventually, facts, insert_worker


def age_s(stage: Stage) -> float:
    ((age,),) = stage.sql(
        "select extract(epoch from clock_timestamp() - max(heartbeat_at))::float8 from process_heartbeats"
    )
    return float(age)


def test_a_process_that_works_is_heard_of_and_one_that_stops_is_forgotten(stage: Stage, database_url: str):
    beat = Heartbeat("beat", database_url)
    beat.start()
    (row,) = eventually(lambda: stage.sql("select kind, abs(clock_ahead_s) < 2 from process_heartbeats"))
    assert tuple(row) == ("beat", True)
    beat.stop()
    assert stage.sql("select 1 from process_heartbeats") == []


def test_a_process_stuck_in_its_work_falls_silent(stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(signs_of_life, "HEARTBEAT_EVERY_S", 0.02)
    monkeypatch.setattr(signs_of_life, "STUCK_AFTER_S", 0.1)
    done = Event()

    def wait() -> None:
        done.wait(60)

    work = Loop("plan", wait, every_s=60.0)
    planner, stuck = Heartbeat("planner", database_url, [work]), Thread(target=work.step)
    planner.start()
    eventually(lambda: stage.sql("select 1 from process_heartbeats"))
    stuck.start()
    eventually(lambda: age_s(stage) > 0.5)
    done.set()
    eventually(lambda: age_s(stage) < 0.3)
    planner.stop()


def test_a_process_whose_steps_fail_says_so_until_one_succeeds(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(signs_of_life, "HEARTBEAT_EVERY_S", 0.02)
    refused = [True]

    def work() -> None:
        if refused:
            raise PermissionError("no right on table requests")

    loop = Loop("prediction", work, every_s=60.0, expected=(PermissionError,))
    predictor = Heartbeat("predictor", database_url, [loop])
    predictor.start()
    loop.step()
    loop.step()
    said = "the steps of a process predictor fail, see its log: answers' lengths are guessed"
    ready = eventually(lambda: [one for one in api.call("GET", "/readyz").json["missing"] if one.startswith(said)])
    assert "no right" not in ready[0]  # the page is open to all
    metrics = api.client.get("/metrics").get_data(as_text=True)
    assert 'magnus_processes_failing{process="predictor"} 1.0' in metrics
    refused.clear()
    loop.step()
    eventually(lambda: not any(one.startswith(said) for one in api.call("GET", "/readyz").json["missing"]))
    predictor.stop()


def test_a_service_without_beat_is_ready_and_degraded_and_beat_alone_is_blamed(api: Api):
    insert_worker(api.sql, facts(model="words"))
    with api.engine.begin() as connection:
        for kind in ("planner", "predictor", "chores", "trainer"):
            process_heartbeats.write(connection, kind, "host:1", 0.0)
        write_queue_snapshot(connection, QueueSnapshot(at=datetime.now(UTC)))
    ready = api.call("GET", "/readyz")
    assert ready.status_code == 200
    assert ready.json["status"] == "degraded"
    assert ready.json["missing"] == ["no beat runs: predictor and planner get no ticks from it"]
    assert api.call("GET", "/v1/magnus/stats").json["missing"] == ready.json["missing"]
    metrics = api.client.get("/metrics").get_data(as_text=True)
    assert 'magnus_processes_alive{process="beat"} 0.0' in metrics
    assert 'magnus_processes_alive{process="planner"} 1.0' in metrics
    with api.engine.begin() as connection:
        process_heartbeats.write(connection, "beat", "host:2", 0.0)
    assert api.call("GET", "/readyz").json["status"] == "ready"
