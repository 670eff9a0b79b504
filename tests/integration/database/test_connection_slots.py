"""A Postgres that allows too few connections is told at the start, by /readyz and by the doctor."""

import re
from pathlib import Path

from sqlalchemy import make_url

from cli.checks.doctor_checks import findings
from models.connections.connection_slots import FOR_COMMANDS, MOST_OF, connection_shortage
from settings import Settings
from tests.integration.api_service import Api

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "scale.md"


def test_the_page_for_operators_says_how_many_each_process_keeps() -> None:
    rows = re.findall(rf"^\| `({'|'.join(MOST_OF)})` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert {process: int(most) for process, most in rows} == MOST_OF


def test_too_few_connections_are_a_problem_with_a_remedy(api: Api, web_settings: Settings) -> None:
    needed = FOR_COMMANDS + sum(MOST_OF.values())
    database = make_url(str(web_settings.database_url)).database
    processes = dict.fromkeys(MOST_OF, 1)
    for limit, short in ((needed, False), (needed - 1, True)):
        api.sql(f'alter database "{database}" connection limit {limit}')
        with api.engine.connect() as connection:
            assert (connection_shortage(connection, processes) is not None) == short
    api.sql(f'alter database "{database}" connection limit 15')
    assert any("raise max_connections" in line for line in api.client.get("/readyz").get_json()["missing"])
    found = {finding.check: finding for finding in findings(web_settings)}
    assert "max_connections" in str(found["connections"].remedy)
    api.sql(f'alter database "{database}" connection limit -1')
    assert not any("max_connections" in line for line in api.client.get("/readyz").get_json()["missing"])
