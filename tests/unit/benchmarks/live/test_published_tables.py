"""The commands behind the published tables."""

from pathlib import Path

import pytest

from benchmarks.live.__main__ import main as live
from benchmarks.live.published_tables import TABLES


@pytest.mark.parametrize("table", TABLES)
def test_the_terms_of_every_table_are_options_of_the_comparison(table: str, tmp_path: Path) -> None:
    arguments = [*TABLES[table].split(), "--resume", "--minutes", "1", "--json", str(tmp_path / "runs.json")]
    parsed = live.make_context("live", arguments).params
    assert len(parsed["policies"]) >= 4
    assert parsed["requests"] >= 450
