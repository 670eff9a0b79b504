"""Lists as options."""

import click
import pytest

from cli.option_types import CommaSeparated


def test_the_parts_have_the_type_of_the_list() -> None:
    assert CommaSeparated(float).convert("0.5,4", None, None) == [0.5, 4.0]


def test_a_part_of_a_list_that_is_no_choice_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'c' is not one of"):
        CommaSeparated(click.Choice(["a", "b"])).convert("a,c", None, None)
