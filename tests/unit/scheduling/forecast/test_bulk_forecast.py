"""How much is served before a job ends, where jobs share by their tenants' weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.forecast.bulk_forecast import work_before_end
from scheduling.request import Job
from scheduling.sharing.background.deadlines import Work


def work(tokens: int) -> Work:
    return Work(requests=10, prefill=tokens // 2, remaining=tokens - tokens // 2, longest=7)


@pytest.mark.parametrize(
    ("left", "weights", "tokens"),
    [
        ({Job("a", "1"): 100}, {}, 100),
        ({Job("a", "1"): 100, Job("b", "2"): 1_000}, {}, 200),  # another tenant's large job gets as much
        ({Job("a", "1"): 100, Job("b", "2"): 40}, {}, 140),  # a small one ends before
        ({Job("a", "1"): 100, Job("b", "2"): 1_000}, {"a": 4.0}, 125),
        (
            {Job("a", "1"): 100, Job("a", "2"): 1_000, Job("b", "3"): 1_000},
            {},
            400,
        ),  # a tenant's jobs share what it gets
    ],
)
def test_the_tokens_before_the_end_of_a_job(left: dict[Job, int], weights: dict[str, float], tokens: int) -> None:
    works = {job: work(size) for job, size in left.items()}
    before = work_before_end(works, Job("a", "1"), lambda tenant: weights.get(tenant, 1.0))
    assert before.longest == 7
    assert before.tokens == pytest.approx(tokens, abs=3)


@given(
    st.dictionaries(st.builds(Job, st.sampled_from("abc"), st.sampled_from("123")), st.integers(1, 10**6), min_size=1)
)
def test_a_larger_job_of_the_same_tenant_ends_later_and_the_last_one_after_all(
    left: dict[Job, int],
) -> None:
    works = {job: work(size) for job, size in left.items()}
    before = {job: work_before_end(works, job, lambda _: 1.0).tokens for job in left}
    for job, size in left.items():
        assert size <= before[job] <= sum(left.values()) + 2 * len(left)
        for other in left:
            if other[0] == job[0] and left[other] >= size:
                assert before[other] >= before[job]
