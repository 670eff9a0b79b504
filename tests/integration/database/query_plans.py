"""What each statement of a call really visits: every statement is explained and analyzed just before it runs.

A statement is planned as psycopg and Postgres do it, both for its own parameters and as the sixth run of a prepared
statement, where Postgres may choose a plan made for all parameters.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy import Connection

LARGE = {
    "requests",
    "batches",
    "minutes",
    "usage_days",
    "webhook_deliveries",
}  # the others stay small: a sequential scan is their best plan
TYPES = {timedelta: "interval"}  # types that psycopg names; Postgres infers all others, as in the real statement
CUSTOM_PLANS = 5  # plans for given parameters, after which Postgres considers one plan for all parameters
PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
# Blocks that a scan may read for each row that it may visit: a search down an index reads 3 or 4, the
# row itself one. An index scan that passes entries by without counting them reads hundreds of rows' entries a block.
BLOCKS_A_ROW = 8


@dataclass(frozen=True)
class Scans:
    """What one plan's scans did, summed over the plan."""

    statement: str
    visited: int  # rows read or passed by
    blocks: int
    sequential: frozenset[str]  # large tables that were read from end to end
    plan: str


@contextmanager
def recorded_scans(connection: Connection) -> Iterator[list[Scans]]:
    """The scans of every statement that runs on this connection; its effects happen once, as without recording."""
    recorded: list[Scans] = []
    driver: Any = connection.connection.driver_connection

    class ExplainingCursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
            statement = query.decode() if isinstance(query, bytes) else str(query)
            if statement.split(None, 1)[0].lower() in ("select", "with", "insert", "update", "delete"):
                recorded.extend(_analyzed(driver, statement, params or {}))
            return super().execute(query, params, **options)

    driver.cursor_factory = ExplainingCursor
    try:
        yield recorded
    finally:
        driver.cursor_factory = psycopg.Cursor


def _analyzed(connection: Any, statement: str, parameters: Mapping[str, Any]) -> Iterator[Scans]:
    numbers = {name: f"${n}" for n, name in enumerate(parameters, 1)}
    prepared = PLACEHOLDER.sub(lambda found: numbers[found[1]] if found[1] else "%", statement)
    types = ", ".join(TYPES.get(type(value), "unknown") for value in parameters.values())
    given = sql.SQL(", ").join(map(sql.Literal, parameters.values()))
    execute = sql.SQL("execute examined({})").format(given) if parameters else sql.SQL("execute examined")
    cursor: Any
    with psycopg.Cursor(connection) as cursor:
        cursor.execute("savepoint examined")
        prepare = sql.SQL(f"prepare examined {f'({types})' if types else ''} as {prepared}")
        cursor.execute(prepare)
        analyze = sql.SQL("explain (analyze, buffers, format json) ") + execute
        plans = [cursor.execute(analyze).fetchone()[0]]
        cursor.execute("rollback to savepoint examined")
        for _ in range(CUSTOM_PLANS - 1):
            cursor.execute(sql.SQL("explain ") + execute)
        plans.append(cursor.execute(analyze).fetchone()[0])
        cursor.execute("rollback to savepoint examined")
        cursor.execute("deallocate examined")
    for (plan,) in plans:
        nodes = list(_nodes(plan["Plan"]))
        scans = [node for node in nodes if "Relation Name" in node and not node["Node Type"].startswith("Modify")]
        yield Scans(
            statement,
            visited=round(sum(map(_rows_visited, nodes))),
            blocks=sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in scans),
            sequential=frozenset(n["Relation Name"] for n in scans if n["Node Type"] == "Seq Scan") & LARGE,
            plan="\n".join(map(_line, nodes)),
        )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _rows_visited(node: dict[str, Any]) -> float:
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
    is_scan = "Relation Name" in node and not node["Node Type"].startswith("Modify")
    return float(node["Actual Loops"] * (removed + (node["Actual Rows"] if is_scan else 0)))


def _line(node: dict[str, Any]) -> str:
    wanted = ("Index Name", "Relation Name", "Index Cond", "Filter", "Actual Rows", "Actual Loops", "Shared Hit Blocks")
    removed = [name for name in node if name.startswith("Rows Removed")]
    return f"{node['Node Type']}: " + ", ".join(f"{n} {node[n]}" for n in [*wanted, *removed] if n in node)
