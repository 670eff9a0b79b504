""""""

from scheduling.simulation.engine_costs import EngineCosts, run_static
from tests.unit.scheduling.scheduling_builders import FLAT, a_request

COSTS = EngineCosts(FLAT, out_of_memory_s=2.0)
BATCH = (a_request("a", length=30), a_request("b", length=10))


def test_finished_rows_wait_for_the_longest_answer() -> None:
    run = run_static(BATCH, [4, 10], None, 1000, COSTS)
    assert (run.duration_s, run.iterations, run.generated) == (1.06, 10, (4, 10))  # 2 · 30 ms, 10 · 100 ms
    assert (run.tokens.valid, run.tokens.invalid, run.tokens.pad) == (14, 6, 20)


def test_an_iteration_limit_ends_the_batch() -> None:
    run = run_static(BATCH, [4, 10], 5, 1000, COSTS)
    assert (run.iterations, run.generated, run.out_of_memory) == (5, (4, 5), False)


def test_a_batch_that_fills_the_memory_breaks_there_and_has_computed_nothing_of_use() -> None:
    run = run_static(BATCH, [4, 10], None, 72, COSTS)  # 2 · (30 + 6) tokens
    assert (run.iterations, run.out_of_memory, run.tokens.valid, run.tokens.invalid) == (6, True, 0, 12)
    assert round(run.duration_s, 6) == 2.66  # 2 · 30 ms, 6 · 100 ms, 2 s to recover
