"""Who has been served least, relative to weight."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.request import TIER_LEVELS, Request, ServiceTier
from scheduling.virtual_token_counters import (
    PRIORITY_WEIGHT,
    Account,
    TenantCounters,
    VirtualTokenCounters,
    account_of,
    service_tokens,
)
from tests.unit.scheduling.scheduling_builders import a_request

WEIGHT = st.floats(0.25, 8.0)


def test_a_tenant_that_comes_back_starts_from_the_least_counter_of_those_that_wait() -> None:
    counters = VirtualTokenCounters[str]()
    counters.activate("a", [])
    counters.activate("b", ["a"])
    counters.charge("a", 5.0)
    counters.charge("b", 3.0)
    counters.activate("new", ["a", "b"])
    assert counters.served("new") == 3.0
    counters.activate("a", ["new", "b"])
    assert counters.served("a") == 5.0  # it keeps what it has been served


def test_where_nothing_waits_a_tenant_starts_from_the_one_served_last() -> None:
    counters = VirtualTokenCounters[str]()
    counters.activate("a", [])
    counters.charge("a", 5.0)
    counters.activate("new", [])
    assert counters.served("new") == 5.0


def test_what_the_others_were_charged_for_and_not_served_yet_does_not_count_for_one_that_comes() -> None:
    counters = VirtualTokenCounters[str]()
    counters.set_weights({"a": 2.0})
    counters.activate("a", [])
    counters.charge("a", 100.0)  # a counter of 50
    counters.activate("new", ["a"], {"a": 60.0})
    assert counters.served("new") == 20.0


def test_a_tenants_account_of_the_tier_priority_has_a_multiple_of_its_weight() -> None:
    counters = TenantCounters()
    counters.set_weights({"a": 3.0})
    assert counters.weight_of(Account("a", preferred=True)) == PRIORITY_WEIGHT * counters.weight_of(Account("a"))
    assert counters.weight_of(Account("b", preferred=True)) == PRIORITY_WEIGHT


@pytest.mark.parametrize("tier", TIER_LEVELS)
def test_only_the_tier_priority_has_an_account_of_its_own(tier: ServiceTier) -> None:
    request = a_request(tier=tier, tenant="a")
    assert account_of(request) == Account("a", preferred=tier == "priority")


def test_service_counts_by_weight_and_equal_counters_by_name() -> None:
    counters = VirtualTokenCounters[str]()
    for tenant in ("heavy", "light", "equal"):
        counters.activate(tenant, [])
    counters.set_weights({"heavy": 4.0})
    counters.charge("heavy", 8.0)
    counters.charge("light", 2.0)
    assert (counters.served("heavy"), counters.served("light")) == (2.0, 2.0)
    assert counters.least_served(["light", "heavy", "equal"]) == ["equal", "heavy", "light"]
    with pytest.raises(KeyError):
        counters.served("unknown")


@given(
    st.dictionaries(st.sampled_from("abcd"), WEIGHT, min_size=2),
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=300),
)
def test_tenants_that_always_wait_get_shares_like_their_weights(
    weights: dict[str, float], services: list[float]
) -> None:
    counters = VirtualTokenCounters[str]()
    counters.set_weights(weights)
    served = dict.fromkeys(weights, 0.0)
    for tenant in weights:
        counters.activate(tenant, [])
    for service in services:
        tenant = counters.least_served(weights)[0]
        counters.charge(tenant, service)
        served[tenant] += service
    relative = [served[tenant] / weight for tenant, weight in weights.items()]
    assert max(relative) - min(relative) <= max(services) / min(weights.values()) + 1e-9


def test_a_preempted_request_is_charged_for_its_new_prefill_and_not_again_for_its_answer() -> None:
    request = Request("a", 0.0, length=100, limit=500, predicted=200, predicted_upper=300)
    preempted = replace(request, generated=50)
    assert service_tokens(request) == 100 + 200
    assert service_tokens(preempted) == 100 + 50
    assert service_tokens(preempted, iteration_limit=64) == 100 + 50 + 64  # slices are charged one by one
