"""With 200,000 ended and 20,000 waiting requests, no query walks over rows that it does not return.

Every function of `models` that takes a connection or a session has a case here with the rows that it may visit.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

import models
from models.connections.session import make_engine
from tests.integration.database.bulk_query_cases import BULK_CASES
from tests.integration.database.full_database import make_full_database
from tests.integration.database.operation_query_cases import OPERATION_CASES
from tests.integration.database.operator_query_cases import OPERATOR_CASES
from tests.integration.database.query_cases import CASES, NO_QUERIES, Case
from tests.integration.database.query_plans import BLOCKS_A_ROW, Scans, recorded_scans
from tests.integration.database.tenant_query_cases import TENANT_CASES

ALL_CASES = [*CASES, *BULK_CASES, *OPERATION_CASES, *OPERATOR_CASES, *TENANT_CASES]
pytestmark = pytest.mark.timeout(600)  # filling takes some seconds where nothing else runs


@pytest.fixture(scope="module")
def database(module_database_url: str) -> Iterator[Engine]:
    engine = make_engine(module_database_url, idle_in_transaction_s=120.0)  # reading all that waits takes a while
    make_full_database(engine)
    yield engine
    engine.dispose()


def functions_with_queries() -> set[str]:
    """`module.function` of everything public in `models` whose first parameter is a connection or a session."""
    found = set()
    for info in pkgutil.walk_packages(models.__path__, "models."):
        module = importlib.import_module(info.name)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            kinds = [parameter.annotation for parameter in inspect.signature(function).parameters.values()]
            if function.__module__ == module.__name__ and not name.startswith("_") and kinds[:1] != []:
                found |= {f"{info.name.rpartition('.')[2]}.{name}"} if kinds[0] in (Connection, Session) else set()
    return found


def test_every_function_that_queries_has_a_case() -> None:
    assert functions_with_queries() - NO_QUERIES == {case.function for case in ALL_CASES}


def scans_of(database: Engine, case: Case, plan_cache_mode: str = "auto") -> list[Scans]:
    """What the case's statements read; their effects are undone."""
    with database.connect() as connection:
        connection.exec_driver_sql(f"set local plan_cache_mode = {plan_cache_mode}")
        with recorded_scans(connection) as recorded:
            case.call(connection)
        connection.rollback()
    return recorded


def forget_undone_rows(database: Engine) -> None:
    """Remove the index entries of rows that other cases undid: on a busy machine autovacuum comes too late."""
    with database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum (index_cleanup on) requests, batches")


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_a_query_visits_no_more_than_its_case_says(database: Engine, case: Case) -> None:
    visits_no_more_than_its_case_says(database, case, "auto")


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.function == "leases.renew"], ids=str)
def test_a_renewal_visits_no_more_though_planned_for_all_parameters_at_once(database: Engine, case: Case) -> None:
    visits_no_more_than_its_case_says(database, case, "force_generic_plan")


def visits_no_more_than_its_case_says(database: Engine, case: Case, plan_cache_mode: str) -> None:
    """The case's statements read no large table from end to end, and no more rows and blocks than it says."""
    recorded = scans_of(database, case, plan_cache_mode)
    if any(scans.blocks > BLOCKS_A_ROW * case.rows for scans in recorded):
        forget_undone_rows(database)
        recorded = scans_of(database, case, plan_cache_mode)
    assert recorded
    for scans in recorded:
        why = f"{scans.visited} rows and {scans.blocks} blocks visited\n{scans.statement}\n{scans.plan}"
        assert not scans.sequential, why
        assert scans.visited <= case.rows, why
        assert scans.blocks <= BLOCKS_A_ROW * case.rows, why
