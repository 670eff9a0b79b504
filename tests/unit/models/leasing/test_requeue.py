"""Which batches a lost worker may have died of."""

from models.leasing.requeue import Failure, LostBatch, UnfinishedBatch, blamed


def lost(id: int, joins: bool = False, taken: bool = True, started: bool = False, worker: str = "w1") -> LostBatch:
    return LostBatch(id, worker, joins, taken, started)


def test_a_batch_that_was_never_taken_is_not_to_blame():
    assert blamed([lost(1, taken=False)]) == [UnfinishedBatch(1)]


def test_of_batches_that_run_one_by_one_those_that_started_and_the_next_one_are_each_to_blame():
    assert blamed([lost(3), lost(1, started=True), lost(2), lost(4)]) == [
        UnfinishedBatch(1, Failure(1)),
        UnfinishedBatch(2, Failure(2)),
        UnfinishedBatch(3),
        UnfinishedBatch(4),
    ]


def test_a_batch_whose_start_was_not_written_is_to_blame_if_it_was_the_only_one():
    assert blamed([lost(1)]) == [UnfinishedBatch(1, Failure(1))]


def test_a_process_that_gives_up_has_written_what_it_started():
    assert blamed([lost(1, started=True), lost(2)], died=False) == [UnfinishedBatch(1, Failure(1)), UnfinishedBatch(2)]


def test_batches_that_joined_are_to_blame_together_and_so_is_what_runs_after_them():
    assert blamed([lost(1, joins=True, started=True), lost(2), lost(3, joins=True)]) == [
        UnfinishedBatch(1, Failure(1)),
        UnfinishedBatch(3, Failure(1)),
        UnfinishedBatch(2, Failure(2)),
    ]


def test_each_worker_died_of_its_own():
    assert blamed([lost(1, joins=True), lost(2, joins=True, worker="w2"), lost(3, joins=True)]) == [
        UnfinishedBatch(1, Failure(1)),
        UnfinishedBatch(3, Failure(1)),
        UnfinishedBatch(2, Failure(2)),
    ]
