"""The trainer on a real Postgres: learns from the log, publishes what is not worse, and judges recent predictions."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.store import load
from models import model_versions, planner_state
from scheduling.rank_correlation import RankCorrelation
from tasks.training.refit_jobs import EarlyRefits, RefitJobs
from tests.integration.database_stage import Stage, eventually


@pytest.fixture
def jobs(stage: Stage) -> RefitJobs:
    return RefitJobs(stage.database, partial(make_predictor, "usin", make_encoder("hashing")))


def answered(stage: Stage, count: int, *, of: int, predicted: int = 1) -> None:
    """Answers twice as long as their inputs of 1 to `of` words."""
    ended = datetime.now(UTC) - timedelta(minutes=1)
    for n in range(count):
        words = 1 + n % of
        stage.request(
            f"r{n:04}",
            input=" ".join(f"word{(7 * n + k) % 90}" for k in range(words)),
            input_tokens=words,
            limit_tokens=200,
            predicted_tokens=predicted if predicted > 1 else words,
            predicted_upper_tokens=200,
            status="completed",
            output_tokens=2 * words,
            finished_at=ended + timedelta(milliseconds=n),
        )


Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of the trainer processes' log lines."""
    return tmp_path / "trainer.log"


@pytest.fixture
def start(database_url: str, redis_url: str, log: Path) -> Iterator[Start]:
    """Starts trainer processes that refit twice a second; those still running at the end are killed."""
    environment = {
        "MAGNUS_DATABASE_URL": database_url,
        "MAGNUS_REDIS_URL": redis_url,
        "MAGNUS_PARAMETERS": "refit_length_s=0.5",
    }
    started: list[subprocess.Popen[bytes]] = []
    with log.open("ab") as said:

        def start_one() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tasks.training.trainer_process"]
            started.append(subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=said))
            return started[-1]

        yield start_one
        for process in started:
            process.kill()
            process.wait()


def active_version(stage: Stage) -> str:
    """The name of the active version, whose bytes are whole."""
    with stage.database.begin() as connection:
        published = model_versions.active_version(connection, "length")
    assert published is not None
    assert load(published.stored, published.sha256).predict([]) == []
    return published.version


def trainers(stage: Stage) -> int:
    """The number of trainers that lead."""
    held = "select count(*) from leaderships where name = 'trainer' and expires_at > clock_timestamp()"
    ((count,),) = stage.sql(held)
    return int(count)


def test_a_predictor_that_learned_from_the_log_is_published_and_predicts_like_it(stage: Stage, jobs: RefitJobs):
    answered(stage, 400, of=60)
    jobs.refit_length()
    with stage.database.begin() as connection:
        published = model_versions.active_version(connection, "length")
    assert published is not None
    learned = load(published.stored, published.sha256)
    ((scores,),) = stage.sql("select scores from model_versions")
    assert scores["candidate"]["rmse"] < scores["baseline"]["rmse"]
    assert learned.name == "usin"


def test_nothing_is_published_from_a_handful_of_answers(stage: Stage, jobs: RefitJobs):
    answered(stage, 10, of=10)
    jobs.refit_length()
    assert stage.sql("select count(*) from model_versions") == [(0,)]


def test_the_first_refit_comes_with_the_first_answers_and_the_next_when_they_have_doubled(stage: Stage):
    refits: list[int] = []
    early = EarlyRefits(stage.database, lambda: refits.append(len(stage.requests("id"))))
    answered(stage, 100, of=60)
    early.refit_if_due()
    stage.sql("update requests set id = 'first-' || id")
    answered(stage, 90, of=60)
    early.refit_if_due()  # 190 answers are fewer than twice 100
    assert refits == [100]
    stage.sql("update requests set id = 'more-' || id")
    answered(stage, 20, of=60)
    early.refit_if_due()
    assert refits == [100, 210]


def test_a_second_refit_without_news_publishes_nothing(stage: Stage, jobs: RefitJobs):
    answered(stage, 400, of=60)
    jobs.refit_length()
    jobs.refit_length()
    assert stage.sql("select count(*) from model_versions") == [(1,)]


def test_one_version_of_a_kind_is_active(stage: Stage):
    with stage.database.begin() as connection:
        first = model_versions.publish(connection, "length", b"1", b"1", {}, {})
        second = model_versions.publish(connection, "length", b"2", b"2", {}, {})
        other = model_versions.publish(connection, "serving_time", b"3", b"3", {}, {})
    assert stage.sql("select version, active from model_versions order by id") == [
        (first, False),
        (second, True),
        (other, True),
    ]


def test_how_well_recent_predictions_ranked_the_answers_is_written_for_the_planner(stage: Stage, jobs: RefitJobs):
    answered(stage, 60, of=60)
    jobs.refit_length()
    ((state,),) = stage.sql("select value from service_state where name = 'prediction'")
    assert state["n"] == 60
    assert state["tau"] == 1.0  # predicted the number of words, which orders answers of twice as many perfectly
    assert state["by_prompts"]
    with stage.database.begin() as connection:
        assert planner_state.planner_inputs(connection).rank_correlation == RankCorrelation(1.0, by_prompts=True)
        for told, by_prompts in (
            ({"tau": 0.2, "by_prompts": False}, False),
            ({"tau": 0.2}, True),
        ):  # the latter of 1.0.0
            planner_state.write_service_state(connection, "prediction", told)
            assert planner_state.planner_inputs(connection).rank_correlation == RankCorrelation(0.2, by_prompts)
    assert state["applications"]["acme/copy"]["coverage"] == 1.0


def test_serving_times_are_learned_from_finished_batches(stage: Stage, jobs: RefitJobs):
    stage.worker("w1")
    ended = datetime.now(UTC) - timedelta(minutes=1)
    for n in range(200):
        size, generated = 1 + n % 16, 10 + (13 * n) % 100
        stage.sql(
            """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
                serving_s, generation_length, finished_at)
            values ('w1', 'test', 'finished', :size, 20, 1, 1.0, :serving_s, :generated, :ended)""",
            size=size,
            generated=generated,
            serving_s=0.05 + generated * (0.01 + 0.004 * size),
            ended=ended + timedelta(milliseconds=n),
        )
    jobs.refit_serving_time()
    with stage.database.begin() as connection:
        published = model_versions.active_version(connection, "serving_time")
    assert published is not None
    estimated = load(published.stored, published.sha256).serving_time_for("w1", "small").serve_s(8, 20, 50)
    assert estimated == pytest.approx(0.05 + 50 * (0.01 + 0.004 * 8), rel=0.15)


def test_the_trainers_process_refits_on_its_own_clock_one_at_a_time_until_it_is_asked_to_stop(
    stage: Stage, start: Start
):
    answered(stage, 400, of=60)
    processes = [start(), start()]
    eventually(lambda: stage.sql("select 1 from model_versions"), within_s=60)
    assert trainers(stage) == 1
    for process in processes:
        process.terminate()
    assert [process.wait(timeout=30) for process in processes] == [0, 0]


@pytest.mark.long
def test_a_trainer_killed_while_it_fits_leaves_the_active_version_and_the_next_one_goes_on(
    stage: Stage, jobs: RefitJobs, start: Start, log: Path
):
    answered(stage, 800, of=60)
    jobs.refit_length()
    good = active_version(stage)
    answers = stage.requests("output_tokens")
    for _ in range(2):
        stage.sql("delete from service_state where name = 'prediction'")
        process = start()
        eventually(lambda: stage.sql("select 1 from service_state where name = 'prediction'"), within_s=60)
        process.kill()  # the process wrote that row between its read of the log and the fit
        process.wait()
        assert "refitted" not in log.read_text()
        assert active_version(stage) == good
        eventually(lambda: trainers(stage) == 0)
    start()
    eventually(lambda: stage.sql("select 1 from model_versions where version <> :good", good=good), within_s=60)
    assert active_version(stage) != good
    assert stage.requests("output_tokens") == answers


@pytest.mark.long
def test_a_refit_that_is_killed_ends_alone_and_a_later_one_publishes(stage: Stage, start: Start, log: Path):
    answered(stage, 800, of=60)
    process = start()
    eventually(lambda: stage.sql("select 1 from service_state where name = 'prediction'"), within_s=60)
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.ppid() != process.pid:  # a child of the fork server
            child.kill()
    eventually(lambda: stage.sql("select 1 from model_versions"), within_s=60)
    assert "refit failed" in log.read_text()
    assert process.poll() is None


@pytest.mark.long
def test_a_trainer_killed_while_it_publishes_leaves_the_old_version_active(stage: Stage, jobs: RefitJobs, start: Start):
    answered(stage, 400, of=60)
    jobs.refit_length()
    good = active_version(stage)
    stage.sql(
        """create function hold() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock(7); return new; end $$"""
    )
    stage.sql("create trigger hold before insert on model_versions for each row execute function hold()")
    with stage.database.connect() as holder:
        holder.execute(text("select pg_advisory_lock(7)"))
        holder.commit()  # the lock stays, without a transaction that idles
        process = start()
        waiting = "select 1 from pg_locks where locktype = 'advisory' and objid = 7 and not granted"
        eventually(lambda: stage.sql(waiting), within_s=60)
        refits = psutil.Process(process.pid).children(recursive=True)
        process.kill()  # the old version is marked as out of service, and the new one is inserted but not committed
        process.wait()
        psutil.wait_procs(refits, timeout=30)  # with the lock released first, a refit could commit before it ends
        holder.invalidate()  # ends the session and its lock
    eventually(lambda: trainers(stage) == 0 and not stage.sql(waiting))
    assert active_version(stage) == good
    assert stage.sql("select count(*) from model_versions") == [(1,)]
