import pickle

import pytest

from scheduling.policies.fusion.priority_key import FAVOURS
from scheduling.policy import Policy
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, UnknownPolicy, favour_of, make_policy
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, add_all


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match=r"unknown policy magnum; there are .*magnus"):
        make_policy("magnum", PolicySettings())


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_call_makes_a_policy_of_its_own(name: str) -> None:
    one, other = make_policy(name, PolicySettings()), make_policy(name, PolicySettings())
    one.add(a_request(), 0.0)
    assert (len(one), len(other)) == (1, 0)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_why_the_first_batch_is_first(name: str) -> None:
    reason = POLICIES[name](PolicySettings()).why_first
    assert reason != Policy.why_first
    assert "{" not in reason.format(ratio="3.00", waited="4.0", seconds="2.0")


@pytest.mark.parametrize(("name", "sizes"), [("vs", [3]), ("glp", [3, 2]), ("abp", [5]), ("magnus", [5])])
def test_the_ablations_of_magnus_differ_in_the_bound_of_their_batches(name: str, sizes: list[int]) -> None:
    # Eq. (1): 60 tokens hold three rows of 10 + 10, or five of 1 + 1
    policy = make_policy(name, PolicySettings(max_prompt_tokens=10, max_output_tokens=10))
    policy.assign([a_worker(tokens=60, busy=True)], 0.0)
    add_all(policy, [a_request(str(number), length=1, predicted=1) for number in range(5)])
    assert [len(batch.requests) for batch in policy.waiting(0.0)][: len(sizes)] == sizes


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_can_be_copied_with_what_waits_in_it(name: str) -> None:
    policy = make_policy(name, PolicySettings())
    policy.add(a_request(), 0.0)
    copied = pickle.loads(pickle.dumps(policy))
    policy.discard("r")
    assert (len(copied), len(policy)) == (1, 0)


def test_only_an_order_by_the_delay_that_requests_cause_favours_something() -> None:
    settings = PolicySettings(favour="tail")
    assert {name: favour_of(name, settings) for name in POLICIES if favour_of(name, settings)} == {
        "fusion": FAVOURS["tail"]
    }
