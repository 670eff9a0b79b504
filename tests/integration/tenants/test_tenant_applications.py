"""Two tenants that use one application name learn nothing of each other's answers."""

from dataclasses import replace
from typing import Any

from sqlalchemy import text

from models.connections.session import make_sessions
from models.new_requests import NewRequest
from models.planning.response_time_estimate import MIN_ANSWERS, RecentAnswers, read_response_times
from models.request_predictions import claim_unpredicted, scoped_application
from models.training_log import finished_requests
from models.upkeep import reconciler
from tests.integration.database_stage import Stage


def answered(stage: Stage, id: str, *, tenant: str, output_tokens: int, took_s: float) -> None:
    stage.request(id, tenant=tenant, application="invoices")
    stage.sql(
        """update requests set status = 'completed', output_tokens = :tokens, finished_at = clock_timestamp(),
            arrived_at = clock_timestamp() - make_interval(secs => :took_s) where id = :id""",
        id=id,
        tokens=output_tokens,
        took_s=took_s,
    )


def test_outcomes_and_requests_to_predict_carry_their_tenant(stage: Stage) -> None:
    answered(stage, "a", tenant="acme", output_tokens=7, took_s=1.0)
    stage.request("b", tenant="globex", application="invoices", predicted_tokens=None, predicted_upper_tokens=None)
    with stage.database.begin() as connection:
        (outcome,) = finished_requests(connection, 10, 3600.0)
        (unpredicted,) = claim_unpredicted(connection, 10)
    assert outcome.application == scoped_application("acme", "invoices")
    assert unpredicted.application == scoped_application("globex", "invoices")


def test_the_mean_length_of_one_tenants_answers_predicts_nothing_of_another(stage: Stage) -> None:
    answered(stage, "a", tenant="acme", output_tokens=7, took_s=1.0)
    for waiting, tenant in (("b", "acme"), ("c", "globex")):
        stage.request(
            waiting, tenant=tenant, application="invoices", predicted_tokens=None, predicted_upper_tokens=None
        )
    with stage.database.begin() as connection:
        reconciler.write_fallback_predictions(connection, grace_s=0.0)
    rows = stage.sql("select id, predicted_tokens, predictor_version from requests where id in ('b', 'c') order by id")
    assert [tuple(row) for row in rows] == [("b", 7, "application mean"), ("c", 20, "limit")]


def test_response_times_are_each_tenants_own(stage: Stage) -> None:
    for number in range(MIN_ANSWERS):
        answered(stage, f"a{number}", tenant="acme", output_tokens=7, took_s=100.0)
        answered(stage, f"g{number}", tenant="globex", output_tokens=7, took_s=1.0)
    with make_sessions(stage.database)() as session:
        estimate = read_response_times(session, RecentAnswers())
    new = NewRequest("acme", "small", "invoices", "", "x", {}, prompt_tokens=3, input_tokens=3, limit_tokens=20)
    etas = [estimate.eta(replace(new, tenant=name), None, 0.0) for name in ("acme", "globex")]
    assert [eta and round(eta.eta_s) for eta in etas] == [100, 1]


def test_predictions_go_round_by_tenants_whatever_priority_one_gives_its_requests(stage: Stage) -> None:
    unpredicted: dict[str, Any] = {"predicted_tokens": None, "predicted_upper_tokens": None}
    for number in range(30):
        stage.request(f"many{number}", tenant="acme", priority=100, **unpredicted)
    for number in range(3):
        stage.request(f"few{number}", tenant="globex", priority=number, **unpredicted)
    claimed, orders = list[str](), list[list[str]]()
    with stage.database.begin() as connection:
        while orders == [] or orders[-1]:
            orders.append([one.id for one in claim_unpredicted(connection, 4)])
            connection.execute(
                text("update requests set predicted_tokens = 1 where id = any(:ids)"), {"ids": orders[-1]}
            )
            claimed += orders[-1]
    assert sum(one.startswith("few") for one in orders[0]) == 2
    assert {"few2", "few1"} < {*orders[0]}
    assert "few0" in orders[1]
    assert len(claimed) == len({*claimed}) == 33


def test_of_more_tenants_than_are_claimed_no_other_request_is_locked(stage: Stage) -> None:
    for number in range(9):
        stage.request(f"r{number}", tenant=f"t{number}", predicted_tokens=None, predicted_upper_tokens=None)
    with stage.database.begin() as connection, stage.database.begin() as other:
        claimed = {one.id for one in claim_unpredicted(connection, 4)}
        free = text("select id from requests for update skip locked")
        assert len(claimed) == 4
        assert {*other.scalars(free)} == {f"r{number}" for number in range(9)} - claimed
