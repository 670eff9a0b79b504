"""docs/operations/scale.md says how many connections each process has at most; a running service has no more."""

import re
from collections import Counter
from pathlib import Path

import psycopg

from cli.hosting.service_files import running_service
from tests.e2e.whole_service import Up

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "scale.md"


def documented() -> dict[str, int]:
    rows = re.findall(
        r"^\| `(web|planner|predictor|chores|trainer|beat|worker)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE
    )
    return {process: int(most) for process, most in rows}


def process_of(name: str) -> str:
    """The process whose connection has this name in pg_stat_activity."""
    word = name.split()[1]
    return {"bulk": "chores", "upkeep": "chores", "webhooks": "chores"}.get(word, word)


def test_each_process_keeps_within_its_connections(up: Up) -> None:
    service = running_service(up.state_dir)
    assert service is not None
    with psycopg.connect(service.database_url) as connection:
        rows = connection.execute(
            "select application_name from pg_stat_activity where application_name like 'magnus %'"
            " and application_name <> 'magnus start'"  # a process has this one for a moment, before any other
        ).fetchall()
    found = Counter(process_of(name) for (name,) in rows)
    workers = sum(name.startswith("magnus worker") for (name,) in rows)
    most = documented()
    assert {process for process in found if process != "worker"} <= most.keys()
    assert all(count <= most[process] for process, count in found.items() if process != "worker")
    assert workers <= 2 * most["worker"]  # the service has two
