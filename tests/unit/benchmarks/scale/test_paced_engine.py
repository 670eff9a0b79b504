"""The paced engine gives every row its answer, and takes as long as the published curves say."""

import pytest

from benchmarks.published_costs import Machine
from benchmarks.scale.paced_engine import PacedEngine
from inference.engine_errors import OutOfMemory
from inference.engine_requests import DecodingRequest
from scheduling.costs import ServingCurves
from scheduling.kv_memory import KvMemory

# 10 ms a prefill and 1 ms a token of it; 100 ms an iteration and 10 ms a row of it; room for 60 tokens
MACHINE = Machine(ServingCurves((1e-3, 0.0, 0.0, 0.01), (0.0, 0.01, 0.0, 0.1)), KvMemory(60, 1))


class FakeTime:
    """A clock that pauses alone move on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def answer(sequence: DecodingRequest) -> tuple[int, ...]:
    return tuple(range(int(sequence.id) - 1, -1, -1))


def engine(time: FakeTime) -> PacedEngine:
    return PacedEngine(MACHINE, answer, 100, clock=time.clock, pause=time.pause)


def sequence(tokens: int, prompt: int = 4, limit: int = 50) -> DecodingRequest:
    """A sequence whose answer has as many tokens as its id says."""
    return DecodingRequest(str(tokens), (1,) * prompt, limit)


def test_rows_that_join_get_their_answers_and_leave_with_their_last_tokens():
    paced = engine(FakeTime())
    paced.insert([sequence(2), sequence(3)])
    ended = [row for _ in range(3) for row in paced.step()]
    assert [(row.id, row.generated_ids, row.reason) for row in ended] == [("2", (1, 0), "eos"), ("3", (2, 1, 0), "eos")]
    assert paced.rows == {}
    assert paced.figures.valid_tokens == 5


def test_an_answer_ends_at_its_limit():
    paced = engine(FakeTime())
    (row,), figures = paced.run([sequence(5, limit=2)])
    assert (row.generated_ids, row.reason, figures.iterations) == ((4, 3), "limit", 2)


def test_a_run_to_completion_decodes_ended_rows_on_and_stops_at_its_limit_of_iterations():
    paced = engine(FakeTime())
    (short, long), figures = paced.run([sequence(1), sequence(9)], iteration_limit=4)
    assert (short.reason, long.reason, len(long.generated_ids)) == ("eos", "unfinished", 4)
    assert (figures.valid_tokens, figures.invalid_tokens) == (5, 3)


def test_a_row_that_is_removed_from_a_batch_computes_no_more_and_one_that_ended_is_not_removed():
    paced = engine(FakeTime())
    removed = []

    def remove_both(_: object) -> None:
        if paced.figures.iterations == 2:
            removed.extend([paced.remove("1"), paced.remove("9")])

    (short, long), figures = paced.run([sequence(1), sequence(9)], on_progress=remove_both)
    assert (short.reason, long.reason, figures.iterations) == ("eos", "removed", 2)
    assert [row and row.generated_ids for row in removed] == [None, long.generated_ids]


def test_it_takes_as_long_as_the_machine():
    time = FakeTime()
    paced = engine(time)
    paced.insert([sequence(2), sequence(3)])
    assert time.now == pytest.approx(1000.018)  # 10 ms and two rows of 4 tokens
    paced.step()
    paced.step()
    assert time.now == pytest.approx(1000.258)  # 100 ms and 10 ms a row, twice
    paced.step()
    assert time.now == pytest.approx(1000.368)  # for one row


def test_a_host_that_was_late_catches_up():
    time = FakeTime()
    paced = engine(time)
    paced.insert([sequence(9)])
    time.now += 0.05
    paced.step()
    assert time.now == pytest.approx(1000.014 + 0.11)
    time.now += 5.0  # nothing was asked of it meanwhile
    paced.step()
    assert time.now == pytest.approx(1000.014 + 0.11 + 5.0 + 0.11)


def test_joiners_that_do_not_fit_leave_everything_as_it_was():
    paced = engine(FakeTime())
    paced.insert([sequence(9, prompt=20)])
    with pytest.raises(OutOfMemory):
        paced.insert([sequence(8, prompt=20), sequence(7, prompt=20)])
    assert paced.rows == {"9": 0}


def test_a_row_that_is_preempted_goes_on_where_it_was():
    paced = engine(FakeTime())
    paced.insert([sequence(4)])
    paced.step()
    taken = paced.preempt("4")
    assert taken.generated_ids == (3,)
    paced.insert([taken])
    ended = [row for _ in range(3) for row in paced.step()]
    assert [row.generated_ids for row in ended] == [(3, 2, 1, 0)]
    with pytest.raises(KeyError):
        paced.preempt("4")
