import pytest

from scheduling.policies.fusion.length_buckets import WaitingRequest
from scheduling.policies.fusion.tenant_queues import TenantQueues
from tests.unit.scheduling.scheduling_builders import a_request


def queues_of(*tenants: str) -> TenantQueues:
    """One request of each tenant, named like it."""
    queues = TenantQueues()
    for tenant in tenants:
        queues.add(WaitingRequest(a_request(tenant, tenant=tenant)))
    return queues


def test_the_least_served_tenants_come_first_and_equal_ones_by_name() -> None:
    queues = queues_of("c", "a", "b")
    queues.counters.charge("a", 1.0)
    assert queues.least_served(8) == ["b", "c", "a"]
    assert queues.least_served(2) == ["b", "c"]


def test_a_tenant_without_waiting_requests_takes_no_turn() -> None:
    queues = queues_of("a", "b")
    assert "a" in queues
    assert queues.take("a").request.id == "a"
    assert ("a" in queues, len(queues), queues.least_served(8)) == (False, 1, ["b"])
    with pytest.raises(KeyError):
        queues.take("a")


def test_the_backlog_is_the_work_of_all_that_waits() -> None:
    queues = TenantQueues()
    assert queues.mean_remaining() == 1.0
    for name, predicted in (("short", 10), ("long", 30)):
        queues.add(WaitingRequest(a_request(name, predicted=predicted, tenant=name)))
    assert queues.mean_remaining() == 20.0
    queues.take("long")
    assert queues.mean_remaining() == 10.0
    assert [waiting.request.id for waiting in queues] == ["short"]
