"""How many workers a demand needs: by hand with flat costs, and against the simulator's response times."""

import numpy as np
import pytest

from scheduling.forecast.wanted_workers import Demand, work_s, workers_wanted
from scheduling.policies.fusion.fusion_policy import Fusion
from scheduling.sharing.background.background_part import TypicalRow
from scheduling.sharing.background.deadlines import Work
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate
from tests.unit.scheduling.scheduling_builders import SLOPED, a_memory, a_request, a_worker

ROW = TypicalRow(length=50, remaining=50)
# Ten rows of 100 tokens fit; FLAT serves them in 10 · 50 · 0.001 + 50 · 0.1 = 5.5 s, and REFILL_S is 0.05: 1.8 rows/s.
WORKER = a_worker(tokens=1_000)
HUNDRED = Work(requests=100, prefill=5_000, remaining=5_000, longest=50)  # 100 / 1.8 = 55.5 s of one worker


def test_waiting_work_is_the_seconds_of_one_worker_whatever_the_fleet() -> None:
    demand = Demand(waiting=HUNDRED, jobs=[(HUNDRED, 3600.0)])
    assert work_s(demand, [WORKER]) == pytest.approx(2 * 55.5)
    assert work_s(demand, [WORKER] * 7) == pytest.approx(2 * 55.5)


def test_a_faster_worker_halves_the_work_of_its_part() -> None:
    faster = a_worker(tokens=2_000)  # twenty rows in 6 s: 3.3 rows/s
    assert work_s(Demand(waiting=HUNDRED), [WORKER, faster]) == pytest.approx(100 / ((1 / 0.555 + 20 / 6.05) / 2))


def test_nothing_is_known_without_a_worker() -> None:
    assert work_s(Demand(waiting=HUNDRED), []) == 0.0
    assert workers_wanted(Demand(waiting=HUNDRED), [], 30.0) == 1


@pytest.mark.parametrize(
    ("demand", "wanted"),
    [
        (Demand(), 0),
        (Demand(running=1), 1),
        (Demand(running=31, arriving=ROW), 4),  # ten rows each
        (Demand(arrivals_per_s=1.0, arriving=ROW), 1),  # 1 / 1.8 / 0.8 = 0.7 busy workers
        (Demand(arrivals_per_s=4.0, arriving=ROW), 3),  # 2.8
        (Demand(waiting=HUNDRED), 2),  # 55.5 s of work within 30 s
        (Demand(arrivals_per_s=4.0, arriving=ROW, waiting=HUNDRED), 5),  # 2.8 + 1.9
        (Demand(jobs=[(HUNDRED, 86_400.0)]), 1),
        (Demand(jobs=[(HUNDRED, 30.0)]), 3),  # 55.5 s within 25 s
        (Demand(jobs=[(HUNDRED, -5.0)]), 12),  # a window that is over counts as MARGIN_S
    ],
)
def test_the_workers_wanted_for_an_answer_within_thirty_seconds(demand: Demand, wanted: int) -> None:
    assert workers_wanted(demand, [WORKER], 30.0) == wanted


def test_a_shorter_target_wants_more_workers_with_fewer_rows_each() -> None:
    demand = Demand(arrivals_per_s=20.0, arriving=ROW)
    sloped = a_worker(tokens=10_000, costs=SLOPED)
    wanted = [workers_wanted(demand, [sloped], target_s) for target_s in (60.0, 10.0, 6.0)]
    assert wanted == sorted(wanted)
    assert wanted[0] < wanted[-1]


def test_a_target_that_no_fleet_reaches_does_not_want_endless_workers() -> None:
    demand = Demand(arrivals_per_s=20.0, arriving=ROW)
    sloped = a_worker(tokens=10_000, costs=SLOPED)
    assert workers_wanted(demand, [sloped], 0.001) == workers_wanted(demand, [sloped], 1.0)


def test_in_the_simulator_the_wanted_workers_keep_the_target_and_half_of_them_do_not() -> None:
    rate, target_s = 8.0, 6.0
    chance = np.random.default_rng(3)
    instants = np.cumsum(chance.exponential(1 / rate, 150)).tolist()
    answers = chance.lognormal(3.5, 0.8, 150).clip(1, 400).astype(int).tolist()
    arrivals = [
        Arrival(a_request(f"{n:04}", at, 100, answer, limit=400), answer)
        for n, (at, answer) in enumerate(zip(instants, answers, strict=True))
    ]
    row = TypicalRow(100, sum(answers) // len(answers))
    worker = a_worker(tokens=2_000, costs=SLOPED)
    wanted = workers_wanted(Demand(arrivals_per_s=rate, arriving=row), [worker], target_s)
    within = {}
    for workers in (wanted, wanted // 2):
        fleet = [Instance(f"w{n}", a_memory(2_000)) for n in range(workers)]
        trace = simulate(Fusion(), arrivals, fleet, EngineCosts(SLOPED), seed=0)
        within[workers] = trace.response_s.mean <= target_s
    assert within == {wanted: True, wanted // 2: False}
