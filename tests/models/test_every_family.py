"""Every family of the table in docs/models.md is served as `generate` answers each prompt alone, or refused."""

import pytest

from tests.models.served_families import FAMILIES, families_of_page, served, shown
from tests.models.tiny_families import Family

OF_EACH = [pytest.param(family, id=family.name, marks=() if family.fast else pytest.mark.long) for family in FAMILIES]


@pytest.mark.parametrize("family", OF_EACH)
def test_the_answers_of_rows_together_are_those_of_each_alone_as_the_table_says(family: Family):
    assert families_of_page()[shown(family)] == served(family)[:2]


def test_the_table_has_no_other_family():
    assert sorted(families_of_page()) == sorted(map(shown, FAMILIES))
