"""How SQL is written: in `models/` alone, and made into statements by one function."""

import ast
from pathlib import Path

import pytest

from models.connections.sql import _for_driver

ROOT = Path(__file__).parents[4]
PRODUCT = ("cli", "inference", "learning", "models", "processes", "protocol", "scheduling", "tasks", "webapp")


def imports_of_text(path):
    """The modules from which a file imports `text`."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and "text" in {n.name for n in node.names}
    }


def test_models_import_text_from_one_place():
    found = {source for path in (ROOT / "models").rglob("*.py") for source in imports_of_text(path)}
    assert found == {"models.connections.sql"}


def test_no_sql_is_written_outside_models():
    outside = [path for package in PRODUCT if package != "models" for path in (ROOT / package).rglob("*.py")]
    assert [path for path in outside if imports_of_text(path) & {"sqlalchemy", "models.connections.sql"}] == []


@pytest.mark.parametrize(
    ("sql", "for_driver"),
    [
        ("select :name", b"select %(name)s"),
        ("select cast(:ids as text[]), :ids", b"select cast(%(ids)s as text[]), %(ids)s"),
        ("select now()::float8, a[1:n]", b"select now()::float8, a[1:n]"),
        ("where v like 'running-%' and v < :before", b"where v like 'running-%%' and v < %(before)s"),
    ],
)
def test_the_driver_gets_parameters_in_its_own_form(sql, for_driver):
    assert _for_driver(sql) == for_driver
