"""`magnus lab` reads what was served, plays it under every policy, and says what it cannot play."""

import json

import pytest
from click.testing import CliRunner, Result

from cli.commands.policy_commands import lab
from models import planner_state
from models.planning.served_work import NothingToPlay, measured_work
from scheduling.sharing.policy_factory import POLICIES
from tests.integration.database_stage import MODEL, Stage


@pytest.fixture
def service(stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("MAGNUS_DATABASE_URL", database_url)
    stage.worker("w1")
    return stage


def answered(stage: Stage, id: str, arrived_ago_s: float, finished_ago_s: float, model: str = MODEL) -> None:
    stage.request(id, status="completed", output_tokens=8, finished_at="now", model=model)
    stage.sql(
        """update requests set started_at = clock_timestamp() - make_interval(secs => :finished + 0.1),
            arrived_at = clock_timestamp() - make_interval(secs => :arrived),
            finished_at = clock_timestamp() - make_interval(secs => :finished) where id = :id""",
        id=id,
        arrived=arrived_ago_s,
        finished=finished_ago_s,
    )


def run(*arguments: str) -> Result:
    return CliRunner().invoke(lab, arguments)


def test_the_window_has_what_was_answered_in_it_and_counts_what_arrived_in_it(service: Stage) -> None:
    answered(service, "before", 90, 70)
    answered(service, "into", 80, 50)
    answered(service, "within", 40, 30)
    answered(service, "also", 35, 30)
    service.request("waits")
    with service.database.begin() as connection:
        found = measured_work(connection, 60.0, 10.0)
    assert {arrival.request.id for arrival in found.work.arrivals} == {"into", "within", "also"}
    assert list(found.work.counted) == ["within", "also"]
    # 2 answers in the 10 s from the first arrival on, with response times of 10 and 5 s
    assert found.measured.requests_per_s == pytest.approx(0.2, rel=0.01)
    assert found.measured.mean_s == pytest.approx(7.5, rel=0.01)
    assert min(arrival.request.arrived_at for arrival in found.work.arrivals) == 0.0


def test_the_model_that_answered_most_is_played_if_it_is_still_served(service: Stage) -> None:
    service.worker("w2", model="other")
    answered(service, "other", 20, 10, model="other")
    for number in range(2):
        answered(service, f"r{number}", 20, 10)
    for number in range(3):
        answered(service, f"gone{number}", 20, 10, model="gone")
    with service.database.begin() as connection:
        assert measured_work(connection, 60.0, 10.0).model == MODEL


def test_without_a_worker_that_knows_its_costs_nothing_is_played(service: Stage) -> None:
    answered(service, "r", 20, 10)
    service.sql("update workers set facts = facts - 'curves', report = report - 'curves'")
    with service.database.begin() as connection, pytest.raises(NothingToPlay, match="no live worker of small"):
        measured_work(connection, 60.0, 10.0)


def test_the_table_has_every_policy_and_marks_the_one_in_force(service: Stage) -> None:
    with service.database.begin() as connection:
        planner_state.set_policy(connection, "magnus")
    for number in range(30):
        answered(service, f"r{number:02}", 30 - number / 2, 12 - number / 3)
    said = run("--minutes", "1")
    assert said.exit_code == 0, said.output
    assert "magnus (in force)" in said.output
    assert "50 requests or more would tell policies apart" in " ".join(said.output.split())
    figures = json.loads(run("--minutes", "1", "--json").output)
    assert (figures["policy"], figures["measured"]["answered"]) == ("magnus", 30)
    assert set(figures["policies"]) == set(POLICIES) - {"vsq"}
    assert all(policy["answered"] == 30 for policy in figures["policies"].values())


def test_policies_can_be_chosen(service: Stage) -> None:
    answered(service, "r", 20, 10)
    figures = json.loads(run("--policy", "vs", "--policy", "fusion", "--json").output)
    assert list(figures["policies"]) == ["vs", "fusion"]


def test_an_empty_window_is_no_traceback(service: Stage) -> None:
    said = run("--minutes", "1")
    assert said.exit_code == 1
    assert "nothing to play: no request was answered in the last 60 s" in said.output
