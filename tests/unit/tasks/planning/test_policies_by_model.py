import pytest

from models.planning.planner_requests import QueuedRequest
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory
from scheduling.policy import Worker
from scheduling.request import Request
from scheduling.sharing.policy_factory import POLICIES, PolicySettings
from tasks.planning.policies_by_model import PoliciesByModel

WORKER = Worker("w1", KvMemory(10_000, 1), ServingCurves((0, 0, 0, 1), (0, 0, 0, 1)))


def waiting(id: str, model: str = "small", sealed_group: str | None = None) -> QueuedRequest:
    return QueuedRequest(Request(id, 0.0, 5, 10, 5, 5, model=model), sealed_group)


def no_requests() -> PoliciesByModel:
    return PoliciesByModel("magnus", PolicySettings())


def test_what_is_left_of_a_batch_that_ran_out_of_memory_is_split_again():
    policies = no_requests()
    policies.feed([waiting("a", sealed_group="9"), waiting("b", sealed_group="9")], 0.0)
    (assignment,) = policies.policy_for("small").assign([WORKER], 0.0)
    assert assignment.sealed
    assert len(assignment.requests) == 1


def test_the_last_of_such_a_batch_waits_as_any_other_with_its_limit_reserved():
    policies = no_requests()
    policies.feed([waiting("a", sealed_group="9"), waiting("b")], 0.0)
    (assignment,) = policies.policy_for("small").assign([WORKER], 0.0)
    assert {request.id: request.predicted for request in assignment.requests} == {"a": 10, "b": 5}


def test_requests_that_were_served_together_when_an_engine_failed_wait_in_halves_by_group():
    policies = no_requests()
    groups = {"a": "1", "b": "1", "c": "1", "d": "2", "e": "2"}
    fed = [QueuedRequest(Request(name, 0.0, 5, 10, 5, 5, model="small"), None, group) for name, group in groups.items()]
    policies.feed(fed, 0.0)
    policies.feed([], 1.0)
    batches = [[request.id for request in batch.requests] for batch in policies.policy_for("small").waiting(0.0)]
    assert batches == [["a"], ["b", "c"], ["d"], ["e"]]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_request_that_was_predicted_anew_replaces_itself(name: str):
    policies = PoliciesByModel(name, PolicySettings())
    policies.feed([waiting("a"), waiting("b")], 0.0)
    policies.feed([QueuedRequest(Request("a", 0.0, 5, 10, 8, 9, model="small"))], 1.0)
    assert len(policies) == 2
    waits = {request.id: request for batch in policies.policy_for("small").waiting(1.0) for request in batch.requests}
    assert (waits["a"].predicted, waits["b"].predicted) == (8, 5)


def test_a_request_that_was_moved_to_another_model_waits_there_alone():
    policies = no_requests()
    policies.feed([waiting("a", "one")], 0.0)
    policies.feed([waiting("a", "two")], 1.0)
    assert {model: len(policy) for model, policy in policies} == {"one": 0, "two": 1}


def test_discarded_requests_wait_nowhere():
    policies = no_requests()
    policies.feed([waiting("a", "one"), waiting("b", "two")], 0.0)
    policies.discard_all(["b", "never seen"])
    assert {model: len(policy) for model, policy in policies} == {"one": 1, "two": 0}


def test_the_first_policy_that_wants_to_be_asked_again_decides_when():
    policies = PoliciesByModel("scls", PolicySettings())
    assert policies.due_in_s(0.0) is None
    for at, model in ((0.0, "one"), (2.0, "two")):
        policies.feed([waiting(model, model), waiting(f"{model} later", model)], at)
        policies.policy_for(model).assign([WORKER], at)
        policies.feed([waiting(f"{model} next", model)], at)
    due = [policy.wake_at(2.0) for _, policy in policies]
    assert policies.due_in_s(2.0) == min(at for at in due if at is not None) - 2.0
    assert policies.due_in_s(1e9) is None
