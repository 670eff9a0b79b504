import pytest

from models.planner_requests import QueuedRequest
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policies.policy_factory import PolicySettings, UnknownPolicy
from scheduling.policy import Worker
from scheduling.request import Request
from tasks.planning.policies_by_model import PoliciesByModel

WORKER = Worker("w1", KvMemory(10_000, 1), ServingCurves((0, 0, 0, 1), (0, 0, 0, 1)))


def waiting(id: str, model: str = "small", sealed_group: str | None = None) -> QueuedRequest:
    return QueuedRequest(Request(id, 0.0, 5, 10, 5, 5), model, sealed_group)


def rooms() -> PoliciesByModel:
    return PoliciesByModel("magnus", PolicySettings())


def test_requests_wait_by_model():
    here = rooms()
    here.feed([waiting("a", "one"), waiting("b", "two"), waiting("c", "one")], 0.0)
    assert {model: len(policy) for model, policy in here} == {"one": 2, "two": 1}
    assert len(here) == 3


def test_what_is_left_of_a_batch_that_ran_out_of_memory_is_split_again():
    here = rooms()
    here.feed([waiting("a", sealed_group="9"), waiting("b", sealed_group="9")], 0.0)
    (assignment,) = here.of("small").assign([WORKER], 0.0)
    assert assignment.sealed
    assert len(assignment.requests) == 1


def test_the_last_of_such_a_batch_waits_as_any_other():
    here = rooms()
    here.feed([waiting("a", sealed_group="9"), waiting("b")], 0.0)
    (assignment,) = here.of("small").assign([WORKER], 0.0)
    assert sorted(request.id for request in assignment.requests) == ["a", "b"]


def test_discarded_requests_wait_nowhere():
    here = rooms()
    here.feed([waiting("a", "one"), waiting("b", "two")], 0.0)
    here.discard(["b", "never seen"])
    assert {model: len(policy) for model, policy in here} == {"one": 1, "two": 0}


def test_an_unknown_policy_has_no_rooms():
    with pytest.raises(UnknownPolicy):
        PoliciesByModel("best", PolicySettings())
