"""Answers that the database does not take, for reasons that last or pass: the request fails by name, or is answered."""

from collections.abc import Iterator

import pytest

from tasks.serving.results.result_writer import NOT_STORED
from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import Serving, small_model

LASTING = ("54000", "22001", "XX000", "57014")  # too large, too long, an error inside Postgres, cancelled each time


@pytest.fixture
def serving(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(stage, *small_model(tmp_path_factory.getbasetemp() / MODEL), 100_000)
    yield serving
    serving.close()


def refuse_answers(stage: Stage, sqlstate: str, refused: str, times: int = 1_000_000) -> None:
    """Makes Postgres refuse the answer of one request so many times."""
    stage.sql("create sequence refusals")  # counts on, although the transaction is rolled back
    stage.sql(
        f"""create function refuse() returns trigger language plpgsql as $$ begin
            if new.id = '{refused}' and new.output_text is not null and nextval('refusals') <= {times} then
                raise exception using errcode = '{sqlstate}', message = 'refused';
            end if;
            return new;
        end $$"""
    )
    stage.sql("create trigger refuse before update on requests for each row execute function refuse()")


@pytest.mark.parametrize("sqlstate", LASTING)
def test_an_answer_that_is_never_taken_fails_by_name_and_the_others_are_written(
    stage: Stage, serving: Serving, sqlstate: str
) -> None:
    refuse_answers(stage, sqlstate, "r2")
    for number in (1, 2, 3):
        stage.request(f"r{number}", limit_tokens=5)
    batch_id = serving.serve("r1", "r2", "r3")
    statuses = stage.requests("status")
    assert statuses == {"r1": "incomplete", "r2": "failed", "r3": "incomplete"}
    assert stage.requests("error")["r2"]["code"] == NOT_STORED
    assert serving.batch(batch_id) == "finished"
    serving.serve(stage.request("r4", limit_tokens=5))
    assert stage.requests("status")["r4"] == "incomplete"


# a full disk; no table, as with another client's search path; a missing column; a missing right
@pytest.mark.parametrize("sqlstate", ["53100", "42P01", "42703", "42501"])
def test_an_answer_waits_for_a_database_that_takes_none_for_a_while(
    stage: Stage, serving: Serving, sqlstate: str
) -> None:
    refuse_answers(stage, sqlstate, "r1", times=2)
    stage.request("r1", limit_tokens=5)
    serving.serve("r1")
    assert stage.requests("status") == {"r1": "incomplete"}
