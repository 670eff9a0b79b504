"""Shares of tenants are counted while everybody has work waiting, and compared with those of their weights."""

import pytest

from benchmarks.api.weighted_tenants import WEIGHTS, most_off, shares


def test_shares_are_those_of_the_time_in_which_everybody_has_work() -> None:
    served = [("large", float(n), 30.0) for n in range(100)]  # fastest: counted from 10 to 84, which are 74 answers
    served += [("small", 2.0 * n, 20.0) for n in range(100)]  # 37 of them meanwhile: 740 of 2,960 tokens
    found = shares(served)
    assert found == {"large": pytest.approx(2220 / 2960), "small": pytest.approx(740 / 2960)}


def test_the_tenant_that_is_furthest_off_its_weight_counts() -> None:
    total = sum(WEIGHTS.values())
    exact = {tenant: weight / total for tenant, weight in WEIGHTS.items()}
    assert most_off(exact) == pytest.approx(0.0)
    equal = dict.fromkeys(WEIGHTS, 1 / 3)
    assert most_off(equal) == pytest.approx(100.0)  # a third instead of a sixth


def test_a_tenant_that_got_nothing_is_wholly_off() -> None:
    assert most_off({"large": 0.6, "middle": 0.4}) == pytest.approx(100.0)
