"""An answer that may have one token only is an answer: its length counts everywhere, that of a vector nowhere."""

import pytest

from models import training_log
from models.connections.session import make_sessions
from models.operations.application_figures import applications, newest_answers
from models.operations.service_history import take_samples
from models.planning.response_time_estimate import read_newest_answers
from tests.integration.database_stage import Stage


@pytest.fixture
def answered(stage: Stage) -> Stage:
    """A classification and a vector, both answered with one token twelve seconds ago."""
    for name, kind in (("label", "answer"), ("vector", "vectors")):
        stage.request(name, application=name, kind=kind, limit_tokens=1, predicted_tokens=1, predicted_upper_tokens=1)
    stage.sql("""update requests set status = 'completed', output_tokens = 1,
        arrived_at = clock_timestamp() - interval '13 s', finished_at = clock_timestamp() - interval '12 s'""")
    return stage


def test_it_counts_in_the_figures_of_predictions(answered: Stage) -> None:
    with make_sessions(answered.database)() as session:
        assert [one.application for one in newest_answers(session)] == ["label"]
        assert {one.name: one.mean_predicted for one in applications(session)} == {"label": 1.0, "vector": None}
        take_samples(session)
    assert answered.sql("select sum(answers), sum(predicted), sum(covered) from samples") == [(2, 1, 1)]


def test_the_trainer_learns_from_it(answered: Stage) -> None:
    with answered.database.begin() as connection:
        assert training_log.count_answers(connection, 10, 3600.0) == 1
        assert [one.id for one in training_log.finished_requests(connection, 10, 3600.0)] == ["label"]


def test_the_lines_behind_etas_at_submission_go_through_it(answered: Stage) -> None:
    with make_sessions(answered.database)() as session:
        assert [one.application for one in read_newest_answers(session, 0.0)] == ["acme/label"]
