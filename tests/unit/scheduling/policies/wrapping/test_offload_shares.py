"""A policy that offloads all that it sees is shown the tenants' requests in turn, as much as its workers hold."""

from scheduling.policies.scls import SliceLevel
from scheduling.policies.wrapping.offload_shares import OffloadShares
from scheduling.request import Request
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, ids

ROWS = 10  # of a hundred tokens each, that a worker holds


def sharing() -> OffloadShares:
    policy = OffloadShares(lambda: SliceLevel(slice_tokens=90, least_interval_s=1.0))
    policy.set_weights({"heavy": 3.0})
    return policy


def of(tenant: str, number: int) -> Request:
    return a_request(f"{tenant}{number:02}", float(number), length=10, predicted=90, tenant=tenant)


def given(policy: OffloadShares, now: float) -> list[str]:
    batches = ids(policy.assign([a_worker(tokens=100 * ROWS)], now)).get("w", [])
    return sorted(one for batch in batches for one in batch)


def test_while_several_tenants_wait_the_workers_are_given_what_they_hold_by_the_tenants_weights() -> None:
    policy = sharing()
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    first = given(policy, 0.0)
    assert [sum(one.startswith(tenant) for one in first) for tenant in ("heavy", "light")] == [7, 3]
    assert first == [*(f"heavy{n:02}" for n in range(7)), *(f"light{n:02}" for n in range(3))]
    assert len(policy) == 40 - ROWS


def test_a_tenant_that_waits_alone_has_all_of_it() -> None:
    policy = sharing()
    for number in range(20):
        policy.add(of("light", number), 0.0)
    assert len(given(policy, 0.0)) == 20


def test_it_wants_to_be_asked_at_the_end_of_the_interval_while_anything_waits() -> None:
    policy = sharing()
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    given(policy, 0.0)
    end = policy.wake_at(0.0)
    assert end is not None
    assert given(policy, end)
    for number in range(20):
        for tenant in ("heavy", "light"):
            policy.discard(of(tenant, number).id)
    assert len(policy) == 0
    assert policy.wake_at(end) is None


def test_others_are_shown_in_place_of_requests_that_were_discarded_meanwhile() -> None:
    policy = sharing()
    for number in range(30):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    given(policy, 0.0)
    end = policy.wake_at(0.0)
    assert end is not None
    assert given(policy, end - 0.01) == []  # shown, and not assigned before the interval is over
    shown = [request.id for batch in policy.waiting(end) for request in batch.requests][:ROWS]
    assert all(policy.discard(one) for one in shown)
    assert len(given(policy, end)) >= ROWS - 1


def test_what_waits_is_listed_as_it_will_be_shown() -> None:
    policy = sharing()
    for number in range(4):
        for tenant in ("heavy", "light"):
            policy.add(of(tenant, number), 0.0)
    assert policy.assign([], 0.0) == []
    listed = [request.id for batch in policy.waiting(0.0) for request in batch.requests]
    assert listed == ["heavy00", "light00", "heavy01", "heavy02", "heavy03", "light01", "light02", "light03"]
