from models.leasing.leases import Lease
from tasks.serving.batches.batch_job import BatchJob
from tasks.serving.batches.lease_heartbeat import OpenJobs


def job(batch_id: int, fence: int = 1) -> BatchJob:
    return BatchJob(Lease(batch_id, fence), joins=False, iteration_limit=None, preempts=(), sequences=())


def test_a_closed_job_releases_its_waiter_and_is_renewed_no_more():
    jobs, first, second = OpenJobs(), job(1), job(2)
    jobs.add(first)
    jobs.add(second)
    jobs.close({first.lease})
    assert (first.closed.is_set(), second.closed.is_set()) == (True, False)
    assert jobs.by_lease() == {second.lease: second}


def test_an_earlier_lease_of_the_same_batch_closes_nothing():
    jobs, present = OpenJobs(), job(1, fence=2)
    jobs.add(present)
    jobs.close({Lease(1, 1)})
    assert not present.closed.is_set()


def test_closing_twice_is_allowed():
    jobs, only = OpenJobs(), job(1)
    jobs.add(only)
    jobs.close([only.lease])
    jobs.close([only.lease])
    assert only.closed.is_set()


def test_a_worker_that_leaves_releases_those_who_wait_and_those_who_come_later():
    jobs, first, late = OpenJobs(), job(1), job(2)
    jobs.add(first)
    jobs.close_all()
    jobs.add(late)
    assert first.closed.is_set()
    assert late.closed.is_set()
    assert not jobs.any_open
