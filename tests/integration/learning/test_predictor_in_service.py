"""The predictor on a real Postgres: several predict each request once, and new versions are adopted as they come."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

from learning.features.length_predictor import LengthPredictor, Outcome, Prediction, Prompt
from learning.features.text_encoders import make_encoder
from learning.predictors.predictor_factory import make_predictor
from learning.store import digest, dump
from models import model_versions, request_predictions, training_log
from models.request_predictions import CLAIMED_FOR_S
from processes.outcomes import OutcomeCursor
from tasks.prediction.predictor_in_service import CHUNK, PredictorInService, running_version
from tests.integration.database_stage import Stage


def untrained() -> LengthPredictor:
    return make_predictor("usin", make_encoder("hashing"))


def trained(length: int) -> LengthPredictor:
    """A predictor that was fitted on answers of this length only."""
    predictor = untrained()
    predictor.fit([Outcome(Prompt("copy", "", f"abc {n}", 3, 3, 100), length) for n in range(60)])
    return predictor


def publish(stage: Stage, stored: bytes, sha256: bytes) -> str:
    with stage.database.begin() as connection:
        return model_versions.publish(connection, "length", stored, sha256, scores={}, data={})


def wait_for_prediction(stage: Stage, *ids: str) -> None:
    for request_id in ids:
        stage.request(request_id, input="abc", limit_tokens=100, predicted_tokens=None, predicted_upper_tokens=None)


def test_without_a_published_version_the_user_input_length_is_predicted(stage: Stage):
    wait_for_prediction(stage, "r1")
    kicks: list[bool] = []
    assert PredictorInService(stage.database, untrained()).run(kicks.append) == 1
    assert stage.requests("predicted_tokens", "predictor_version") == {"r1": (3, "usin")}
    assert kicks == [True]


def test_the_planner_is_not_kicked_when_there_was_nothing_to_predict(stage: Stage):
    kicks: list[bool] = []
    assert PredictorInService(stage.database, untrained()).run(kicks.append) == 0
    assert kicks == []


def test_a_request_that_generates_nothing_has_a_known_length_and_teaches_nothing(stage: Stage):
    stage.request("vector", kind="vectors", limit_tokens=1, predicted_tokens=None, predicted_upper_tokens=None)
    wait_for_prediction(stage, "chat")
    kicks: list[bool] = []
    assert PredictorInService(stage.database, untrained()).run(kicks.append) == 2
    assert stage.requests("predicted_tokens", "predicted_upper_tokens")["vector"] == (1, 1)
    assert (stage.requests("predicted_tokens")["chat"], kicks) == (3, [True])
    stage.sql("update requests set status = 'completed', output_tokens = 2, finished_at = clock_timestamp()")
    with stage.database.begin() as connection:
        assert [one.id for one in training_log.finished_requests(connection, 1, 3600.0)] == ["chat"]
        assert training_log.count_answers(connection, 10, 3600.0) == 1


def test_more_than_a_chunk_is_predicted_in_one_run(stage: Stage):
    wait_for_prediction(stage, *(f"r{n}" for n in range(CHUNK + 1)))
    assert PredictorInService(stage.database, untrained()).run(lambda _: None) == CHUNK + 1
    assert set(stage.requests("predicted_tokens").values()) == {3}


def test_lines_of_bulk_jobs_are_predicted_after_all_others_and_in_transactions_of_their_own(stage: Stage):
    wait_for_prediction(stage, "line", "other1", "other2")
    stage.sql("update requests set tier = 'flex' where id = 'line'")
    predicted: list[tuple[set[str], bool]] = []

    def note(others: bool) -> None:
        lengths = stage.requests("predicted_tokens")
        predicted.append(({one for one, tokens in lengths.items() if tokens is not None}, others))

    assert PredictorInService(stage.database, untrained()).run(note) == 3
    assert predicted == [({"other1", "other2"}, True), ({"line", "other1", "other2"}, False)]


def test_a_published_version_is_adopted_without_a_restart(stage: Stage):
    predictor = PredictorInService(stage.database, untrained(), check_every_s=0.0)
    predictor.run(lambda _: None)
    model = dump(trained(40))
    version = publish(stage, model, digest(model))
    wait_for_prediction(stage, "r1")
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens", "predictor_version") == {"r1": (40, version)}


def test_the_version_in_service_is_corrected_by_outcomes_since_it_was_fitted(stage: Stage):
    predictor = PredictorInService(stage.database, untrained(), check_every_s=0.0)
    model = dump(trained(40))
    publish(stage, model, digest(model))
    ended = datetime.now(UTC) - timedelta(seconds=30)
    for n in range(50):
        stage.request(
            f"old{n:02}",
            application="copy",
            input="abc",
            limit_tokens=200,
            predicted_tokens=40,
            predicted_upper_tokens=40,
            status="completed",
            output_tokens=120,
            finished_at=ended + timedelta(milliseconds=n),
        )
    stage.request(
        "new", application="copy", input="abc", limit_tokens=200, predicted_tokens=None, predicted_upper_tokens=None
    )
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens")["new"] == 120


def test_a_version_whose_bytes_are_not_what_was_published_is_not_adopted(stage: Stage):
    predictor = PredictorInService(stage.database, untrained(), check_every_s=0.0)
    publish(stage, dump(trained(40)), digest(b"something else"))
    wait_for_prediction(stage, "r1")
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens", "predictor_version") == {"r1": (3, "usin")}


def answers(stage: Stage, prefix: str, count: int, length: int) -> None:
    ended = datetime.now(UTC)
    for n in range(count):
        stage.request(f"{prefix}{n}", input="abc", status="completed", output_tokens=length, finished_at=ended)


def test_a_few_answers_are_enough_to_predict_by_before_anything_was_fitted(stage: Stage):
    predictor = PredictorInService(stage.database, check_every_s=0.0)
    answers(stage, "old", 3, length=12)
    wait_for_prediction(stage, "r1")
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens")["r1"] == 12


def test_requests_that_still_wait_are_predicted_again_once_answers_are_there_and_the_planner_fetches_them_again(
    stage: Stage,
):
    predictor = PredictorInService(stage.database, check_every_s=0.0)
    wait_for_prediction(stage, "waits", "runs")
    predictor.run(lambda _: None)
    stage.sql("update requests set planner_epoch = 7")
    stage.sql("update requests set generated_ids = '{1, 2}' where id = 'runs'")
    answers(stage, "old", 4, length=12)
    kicks: list[bool] = []
    predictor.run(kicks.append)
    found = stage.requests("predicted_tokens", "planner_epoch")
    assert found["waits"] == (12, 0)
    assert found["runs"] == (3, 7)  # it has a cache and a place among running rows: only its own progress matters now
    assert kicks == [False]


def test_a_published_version_predicts_the_waiting_requests_of_the_cold_start_again(stage: Stage):
    predictor = PredictorInService(stage.database, check_every_s=0.0)
    wait_for_prediction(stage, "r1")
    predictor.run(lambda _: None)
    model = dump(trained(40))
    version = publish(stage, model, digest(model))
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens", "predictor_version") == {"r1": (40, version)}
    newer = dump(trained(50))
    publish(stage, newer, digest(newer))
    predictor.run(lambda _: None)
    assert stage.requests("predicted_tokens")["r1"] == 40  # a fitted prediction stays


def test_a_predictor_that_saw_less_does_not_overwrite_what_another_predicts_better(stage: Stage):
    answers(stage, "old", 40, length=12)
    wait_for_prediction(stage, "r1")
    PredictorInService(stage.database, check_every_s=0.0).run(lambda _: None)
    stage.sql("delete from requests where id <> 'r1' and id > 'old2'")
    PredictorInService(stage.database, check_every_s=0.0).run(lambda _: None)
    assert stage.requests("predictor_version")["r1"] == running_version(40)


def test_predictors_side_by_side_share_the_work_and_predict_nothing_twice(stage: Stage):
    wait_for_prediction(stage, *(f"r{n:03}" for n in range(3 * CHUNK)))
    stage.sql("create table predictions (id text)")
    stage.sql(
        """create function note() returns trigger language plpgsql as
        $$ begin insert into predictions values (new.id); return new; end $$"""
    )
    stage.sql("create trigger note after update of predicted_tokens on requests for each row execute function note()")
    together = Barrier(3)

    def predict(_: int) -> int:
        together.wait()
        return PredictorInService(stage.database, untrained()).run(lambda _: None)

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(predict, range(3))) == 3 * CHUNK
    assert stage.sql("select count(*), count(distinct id) from predictions") == [(3 * CHUNK, 3 * CHUNK)]


OPEN = "select pid from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()"


class Slow:
    """A predictor that calls `meanwhile` while it predicts."""

    name = "slow"

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile, self._usin = meanwhile, untrained()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usin, name)

    def predict(self, prompts: Sequence[Prompt]) -> Sequence[Prediction]:
        self._meanwhile()
        return self._usin.predict(prompts)


def test_no_row_is_locked_and_no_transaction_is_open_while_a_predictor_computes(stage: Stage):
    wait_for_prediction(stage, "r1", "cancelled")

    def cancel_one() -> None:
        assert stage.sql("select id from requests order by id for update nowait") == [("cancelled",), ("r1",)]
        assert stage.sql(OPEN) == []
        stage.sql("update requests set status = 'cancelled', finished_at = now() where id = 'cancelled'")

    predictor: Any = Slow(cancel_one)
    assert PredictorInService(stage.database, predictor).run(lambda _: None) == 1
    assert stage.requests("predicted_tokens") == {"r1": 3, "cancelled": None}


def test_requests_of_a_predictor_that_was_killed_are_predicted_by_another_one_and_late_predictions_are_dropped(
    stage: Stage,
):
    wait_for_prediction(stage, "r1")
    with stage.database.begin() as connection:
        claimed = request_predictions.claim_unpredicted(connection, 10)
    other = PredictorInService(stage.database, untrained())
    assert other.run(lambda _: None) == 0
    stage.sql("update requests set predicting_until = predicting_until - make_interval(secs => :s)", s=CLAIMED_FOR_S)
    assert other.run(lambda _: None) == 1
    with stage.database.begin() as connection:
        assert request_predictions.write_predictions(connection, claimed, {"r1": (9, 9)}, "late") == 0
    assert stage.requests("predicted_tokens", "predictor_version") == {"r1": (3, "usin")}


def test_a_working_predictor_writes_that_it_is_alive(stage: Stage):
    PredictorInService(stage.database, untrained()).run(lambda _: None)
    assert stage.sql("select value from service_state where name = 'predictor'") == [({"version": "usin"},)]


def answered(stage: Stage, request_id: str, ended: datetime) -> None:
    stage.request(request_id, input="abc", status="completed", output_tokens=9, finished_at=ended)


def test_a_second_look_at_the_log_reads_nothing_old_and_skips_nothing_that_was_committed_late(stage: Stage):
    ended = datetime.now(UTC) - timedelta(seconds=60)
    cursor = OutcomeCursor()

    def new(now: float) -> list[str]:
        with stage.database.begin() as connection:
            read = training_log.finished_requests(connection, 100, 3600.0, cursor.after, cursor.known_ids)
        cursor.advance(read, now)
        return [request.id for request in read]

    for n in range(5):
        answered(stage, f"r{n}", ended + timedelta(microseconds=n // 2))
    assert sorted(new(0.0)) == ["r0", "r1", "r2", "r3", "r4"]
    assert new(0.5) == []
    answered(stage, "same instant", ended + timedelta(microseconds=2))
    answered(stage, "late", ended - timedelta(seconds=5))
    answered(stage, "newest", ended + timedelta(seconds=1))
    assert new(1.0) == ["late", "same instant", "newest"]
    assert new(1.5) == []
