"""Two tenants that use one application name learn nothing of each other's answers."""

from models.planning.response_time_estimate import MIN_ANSWERS, RecentAnswers, read_response_times
from models.request_predictions import claim_unpredicted, scoped_application
from models.session import make_sessions
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
    etas = [estimate.eta(name, 3, 20, "small", None) for name in ("acme/invoices", "globex/invoices")]
    assert [eta and round(eta.eta_s) for eta in etas] == [100, 1]
