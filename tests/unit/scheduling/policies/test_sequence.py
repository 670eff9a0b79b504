import pytest

from scheduling.policies.sequence import SequenceScheduling, VariableBatchSize
from scheduling.policy import Assignment
from tests.unit.scheduling.scheduling_builders import a_request, a_worker, add_all, ids


@pytest.mark.parametrize(
    ("length", "size"),
    # 256 · 50 / L to the nearest power of two; 16 from 300 on
    [(50, 256), (100, 128), (150, 64), (200, 64), (250, 64), (299, 32), (300, 16), (512, 16), (40_000, 16)],
)
def test_shorter_answers_make_larger_batches(length: int, size: int) -> None:
    assert VariableBatchSize().batch_size_for(length, 16) == size


def test_no_batch_is_smaller_than_one() -> None:
    assert VariableBatchSize(size=4, tokens=1, below=100).batch_size_for(50, 16) == 1


def test_a_group_is_served_sorted_by_predicted_length_within_its_bins() -> None:
    policy = SequenceScheduling(batch_size=2, variable=None)
    add_all(policy, [a_request(str(number), predicted=length) for number, length in enumerate([90, 20, 180, 60, 40])])
    batches = policy.assign([a_worker("x"), a_worker("y"), a_worker("z"), a_worker("b", busy=True)], 0.0)
    # bins: 1 and 4 up to 50, 0 and 3 up to 100, 2 up to 200
    assert ids(batches) == {"x": [["1", "4"]], "y": [["0", "3"]], "z": [["2"]]}
    assert [assignment.iteration_limit for assignment in batches] == [50, 100, 200]


def test_without_binning_a_batch_runs_as_long_as_its_longest_prediction() -> None:
    policy = SequenceScheduling(bin_tokens=None)
    policy.add(a_request(predicted=43, upper=47), 0.0)
    (assignment,) = policy.assign([a_worker()], 0.0)
    assert assignment.iteration_limit == 47


def test_without_failure_collection_a_batch_runs_to_its_end() -> None:
    policy = SequenceScheduling(collect_failures=False)
    policy.add(a_request(), 0.0)
    (assignment,) = policy.assign([a_worker()], 0.0)
    assert assignment.iteration_limit is None


@pytest.mark.parametrize(("resumes", "generated"), [(True, 50), (False, 0)])
def test_failures_run_when_the_group_is_through_and_before_the_next(resumes: bool, generated: int) -> None:
    policy = SequenceScheduling(group_size=2, batch_size=1, variable=None, resume_failures=resumes)
    add_all(policy, [a_request(name, at=number) for number, name in enumerate("abc")])
    worker = a_worker()
    assert ids(policy.assign([worker], 3.0)) == {"w": [["a"]]}
    policy.add(a_request("a", generated=50), 4.0)
    assert ids(policy.assign([worker], 4.0)) == {"w": [["b"]]}
    (failed,) = policy.assign([worker], 5.0)
    assert [(request.id, request.generated) for request in failed.requests] == [("a", generated)]
    assert failed.iteration_limit == 1024 - generated
    assert ids(policy.assign([worker], 6.0)) == {"w": [["c"]]}
    assert policy.assign([worker], 7.0) == []


def test_a_batch_stays_within_the_memory_of_its_worker() -> None:
    policy = SequenceScheduling()
    add_all(policy, [a_request(name, predicted=50) for name in "abcde"])
    assert ids(policy.assign([a_worker(tokens=130)], 0.0)) == {"w": [["a", "b"]]}  # two of 10 + 50


def test_a_request_too_large_for_a_small_worker_waits_for_the_largest() -> None:
    policy = SequenceScheduling()
    add_all(policy, [a_request("giant", length=500), a_request("tiny", predicted=50)])
    small, large = a_worker("small", 100), a_worker("large", 200)
    assert ids(policy.assign([small, a_worker("large", 200, busy=True)], 0.0)) == {"small": [["tiny"]]}
    assert policy.assign([small, a_worker("large", 200, busy=True)], 0.0) == []
    assert ids(policy.assign([large], 0.0)) == {"large": [["giant"]]}


def test_halves_of_a_batch_beyond_memory_go_first() -> None:
    policy = SequenceScheduling()
    policy.add(a_request("c"), 0.0)
    policy.out_of_memory(Assignment("w", (a_request("a"), a_request("b"))), 0.0)
    (assignment,) = policy.assign([a_worker()], 0.0)
    assert (assignment.sealed, len(assignment.requests)) == (True, 1)


def test_a_half_goes_where_it_fits_or_to_the_largest() -> None:
    policy = SequenceScheduling()
    policy.out_of_memory(Assignment("w", (a_request("giant", limit=500),)), 0.0)  # reserves 10 + 500 tokens
    small, busy = a_worker("small", 200), a_worker("large", 400, busy=True)
    assert policy.assign([small, busy], 0.0) == []
    assert ids(policy.assign([small, a_worker("large", 400)], 0.0)) == {"large": [["giant"]]}


def test_a_request_can_be_discarded_wherever_it_waits() -> None:
    policy = SequenceScheduling(group_size=2, batch_size=1, variable=None)
    add_all(policy, [a_request(name, at=number) for number, name in enumerate("abc")])
    policy.assign([a_worker()], 0.0)
    policy.add(a_request("failed", generated=5), 0.0)
    policy.out_of_memory(Assignment("w", (a_request("half"),)), 0.0)
    assert [[request.id for request in batch.requests] for batch in policy.waiting(0.0)] == [
        ["half"],
        ["b"],
        ["failed"],
        ["c"],
    ]
    assert all(policy.discard(name) for name in ("half", "b", "failed", "c"))
    assert not policy.discard("a")
    assert len(policy) == 0


def test_the_queue_is_shown_in_the_batches_of_the_groups_to_come() -> None:
    policy = SequenceScheduling(group_size=3, batch_size=2, variable=None)
    predictions = [90, 20, 30, 200, 40]
    add_all(policy, [a_request(str(number), at=number, predicted=p) for number, p in enumerate(predictions)])
    shown = [[request.id for request in batch.requests] for batch in policy.waiting(5.0)]
    assert shown == [["1", "2"], ["0"], ["4", "3"]]  # two groups, of three and of two


def test_narrow_bins_are_a_fifth_of_the_mean_and_group_short_answers_that_bins_of_50_mix() -> None:
    limits = {}
    for narrow in (False, True):
        policy = SequenceScheduling(batch_size=2, variable=None, narrow_bins=narrow)
        add_all(policy, [a_request(str(n), predicted=tokens) for n, tokens in enumerate([2, 4, 12, 14, 28, 30])])
        worker = a_worker()
        limits[narrow] = [policy.assign([worker], 0.0)[0].iteration_limit for _ in range(3)]
    assert limits == {False: [50, 50, 50], True: [6, 15, 30]}  # the mean is 15 tokens, a bin 3


def test_narrow_bins_are_never_wider_than_the_papers() -> None:
    policy = SequenceScheduling(narrow_bins=True)
    add_all(policy, [a_request(str(n), predicted=800) for n in range(3)])
    assert policy.assign([a_worker()], 0.0)[0].iteration_limit == 800
    policy.add(a_request("r", predicted=801), 0.0)
    assert policy.assign([a_worker()], 0.0)[0].iteration_limit == 850
