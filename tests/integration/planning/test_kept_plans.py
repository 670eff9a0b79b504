"""Postgres keeps the plans of the planner's statements, also those that it made while hardly anything waited."""

from sqlalchemy import event

from models.planning.planner_requests import FETCH_NEW_REQUESTS
from models.upkeep import reconciler
from tasks.planning.planner_process import planner_database
from tests.integration.database_stage import Stage

STATEMENT = FETCH_NEW_REQUESTS.replace(":epoch", "$1").replace(":most", "$2")


def test_a_plan_made_for_an_empty_table_looks_requests_up_by_their_ids(stage: Stage, database_url: str) -> None:
    database = planner_database(database_url)
    with database.connect() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"explain (generic_plan) {STATEMENT}").scalars())
    database.dispose()
    assert "requests_pkey" in plan
    assert "Seq Scan" not in plan


def test_a_plan_made_for_an_empty_table_finds_overdue_requests_by_their_ids(stage: Stage, database_url: str) -> None:
    database, statements = planner_database(database_url), list[str]()
    event.listen(database, "before_cursor_execute", lambda *call: statements.append(call[2]))
    with database.begin() as connection:
        reconciler.expire_deadlines(connection)
        asked = statements[-1].replace("%(most)s", "5000")
        plan = "\n".join(connection.exec_driver_sql(f"explain {asked}").scalars())
    database.dispose()
    assert "requests_pkey" in plan
    assert "Seq Scan" not in plan
