"""Every family of the table in docs/models.md is served as `generate` answers each prompt alone, or refused."""

import pytest

from tests.models.served_families import FAMILIES, line_of, table_of_page
from tests.models.tiny_families import Family

OF_EACH = [pytest.param(family, id=family.name, marks=() if family.fast else pytest.mark.long) for family in FAMILIES]


@pytest.mark.parametrize("family", OF_EACH)
def test_the_answers_of_rows_together_are_those_of_each_alone_as_the_table_says(family: Family):
    assert line_of(family) in table_of_page().split("\n")


def test_the_table_has_no_other_family():
    assert [line.split(" | ")[0].removeprefix("| ") for line in table_of_page().split("\n")] == [
        family.name for family in FAMILIES
    ]
