"""Budgets as options: what their texts mean, and which are refused."""

from typing import Any

import click
import pytest

from cli.option_types import Budget


@pytest.mark.parametrize(
    ("text", "of_tenant", "expected"),
    [
        ("3600gpu_s", False, {"amount": 3600.0, "unit": "gpu_s"}),
        ("2.5 price", False, {"amount": 2.5, "unit": "price"}),
        ("50price/day", True, {"amount": 50.0, "unit": "price", "period": "day"}),
        ("default", True, "default"),
    ],
)
def test_a_budget_is_an_amount_with_its_unit_and_of_a_tenant_its_period(
    text: str, of_tenant: bool, expected: Any
) -> None:
    assert Budget(of_tenant=of_tenant).convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "of_tenant"),
    [
        ("3600", False),
        ("0gpu_s", False),
        ("default", False),
        ("5price/day", False),
        ("5price", True),
        ("5eur/day", True),
    ],
)
def test_another_text_is_no_budget(text: str, of_tenant: bool) -> None:
    with pytest.raises(click.BadParameter, match="AMOUNT"):
        Budget(of_tenant=of_tenant).convert(text, None, None)
