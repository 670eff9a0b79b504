"""The lab in the background: a round's figures, its pace, and what the overview says and lets an operator do."""

import re
from threading import Event

import pytest
from flask.testing import FlaskClient
from pydantic import SecretStr

from models import planner_state
from models.connections.session import make_sessions
from models.operations.shadow_round import ShadowRound, read_shadow_round
from scheduling.sharing.policy_factory import PolicySettings
from scheduling.simulation.policy_lab import FEW
from settings import Settings
from tasks.training.shadow_policy import Pace, ShadowPolicy
from tests.integration.api_service import Api
from tests.integration.database_stage import MODEL, Stage


class Unpaced(Pace):
    """Goes on at once."""

    def __call__(self) -> bool:
        return not self._stopping.is_set()


def played(stage: Stage, stopping: Event) -> ShadowRound | None:
    ShadowPolicy(stage.database, "vs", PolicySettings(), alive_s=10.0).play_round(Unpaced(stopping))
    with make_sessions(stage.database)() as session:
        return read_shadow_round(session)


def answers(stage: Stage, count: int) -> None:
    """Requests that came every 0.02 s, each of which one worker answered in 0.2 s, in the order of their arrival."""
    stage.worker("w1", kv_tokens=60)
    for number in range(count):
        stage.request(f"r{number:02}", status="completed", output_tokens=1 + 18 * (number % 2), finished_at="now")
    stage.sql(
        """update requests r set arrived_at = at.begun + interval '0.02 s' * n,
            started_at = at.begun + interval '0.2 s' * n, finished_at = at.begun + interval '0.2 s' * (n + 1)
        from (select id, row_number() over (order by id) as n from requests) as numbered,
            (select clock_timestamp() - interval '60 s' as begun) as at where r.id = numbered.id"""
    )


def test_a_round_has_every_policys_mean_and_names_the_fastest(stage: Stage) -> None:
    answers(stage, FEW)
    found = played(stage, Event())
    assert found is not None
    assert (found.model, found.policy, found.requests) == (MODEL, "vs", FEW)
    assert found.mean_s.keys() == {"vs", "ccb", "glp", "abp", "magnus", "sequence", "scls", "baton", "fusion"}
    assert found.mean_s[found.best] == min(found.mean_s.values())
    assert found.gain == pytest.approx(1 - found.mean_s[found.best] / found.mean_s["vs"], abs=0.001)


def test_the_policy_in_force_is_the_databases(stage: Stage) -> None:
    answers(stage, FEW)
    with stage.database.begin() as connection:
        planner_state.set_policy(connection, "fusion")
    found = played(stage, Event())
    assert found is not None
    assert found.policy == "fusion"


def test_few_requests_and_a_round_that_is_given_up_leave_nothing(stage: Stage) -> None:
    assert played(stage, Event()) is None
    answers(stage, FEW - 1)
    assert played(stage, Event()) is None
    stage.sql("truncate workers, requests")
    answers(stage, FEW)
    stopping = Event()
    stopping.set()
    assert played(stage, stopping) is None


# the overview


@pytest.fixture
def web_settings(web_settings: Settings) -> Settings:
    """Settings with a known password."""
    return web_settings.model_copy(update={"dashboard_password": SecretStr("open sesame, please")})


@pytest.fixture
def operator(api: Api) -> FlaskClient:
    api.client.post("/sign-in", data={"secret": "open sesame, please"})
    return api.client


def test_an_operator_puts_the_advised_policy_in_force_and_the_audit_knows_it(api: Api, operator: FlaskClient) -> None:
    token = re.search(r'name="token" value="([0-9a-f]{64})"', operator.get("/audit").text)
    assert token
    assert operator.post("/policy", data={"policy": "fastest", "token": token[1]}).status_code == 404
    assert operator.post("/policy", data={"policy": "fusion", "token": token[1]}).status_code == 303
    with api.engine.connect() as connection:
        assert planner_state.planner_inputs(connection).policy == "fusion"
    assert [tuple(row) for row in api.sql("select action, target from audit_entries")] == [("set", "policy fusion")]
