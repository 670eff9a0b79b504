"""A probe in small worlds, where it is known what the states of a row tell of its length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.length_probe import (
    FEWEST_ROWS,
    FIT_EVERY,
    JUDGED_ROWS,
    KEEP,
    MOST_OPEN,
    RIDGE,
    LengthProbe,
    ridge,
)
from scheduling.length_distributions import UPPER_Z

STATES, EVERY = 8, 16


@dataclass(frozen=True)
class Row:
    """A row whose first state tells the logarithm of what is to come, as far as `telling`; the others are noise."""

    name: str
    total: int
    predicted: float
    limit: int = 10_000
    telling: float = 1.0
    spread: float = 0.8  # of the logarithm of the length, as the arrival's prediction states it


class World:
    """Serves rows one after the other, each read every `EVERY` tokens."""

    def __init__(self, seed: int = 3, telling_from: int = 0) -> None:
        self.random, self.probe, self.served = np.random.default_rng(seed), LengthProbe(), 0
        self.telling_from = telling_from

    def read(self, row: Row, generated: int, joining: bool = False) -> None:
        states = self.random.normal(size=(1, STATES))
        states[0, 0] += row.telling * 3 * np.log(row.total - generated) * (generated >= self.telling_from)
        upper = row.predicted * np.exp(UPPER_Z * row.spread)
        known = np.array([[20, generated, row.limit, row.predicted, upper]], np.float64)
        self.probe.read([row.name], known, states, joining)

    def serve(self, row: Row) -> None:
        tokens = min(row.total, row.limit)
        for generated in range(0, tokens, EVERY):
            self.read(row, generated)
        self.probe.ended(row.name, tokens)

    def rows(self, count: int, telling: float = 1.0, limits: Sequence[int] = (10_000,), skill: float = 0.0) -> None:
        """Serve rows with log-normal lengths; `skill` is how much of their spread the arrival's prediction knows."""
        for _ in range(count):
            self.served += 1
            seen, unseen = self.random.normal(size=2)
            predicted, spread = 60 * np.exp(0.8 * skill * seen), 0.8 * np.sqrt(1 - skill**2)
            total = max(1, round(predicted * np.exp(spread * unseen)))
            self.serve(Row(f"r{self.served}", total, predicted, limits[self.served % len(limits)], telling, spread))

    @property
    def in_service(self) -> bool:
        self.read(Row("asked", 50, 60.0), 0)
        return "asked" in self.probe.lengths


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.integers(10, 80), st.integers(1, 80))
def test_its_regression_is_the_least_squares_solution_with_the_prior_as_further_rows(seed, older, newer):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(older + newer, 5)) * [1, 2, 5, 0.1, 1] + 3, random.normal(size=older + newer)
    weights = np.where(np.arange(older + newer) < older, KEEP**newer, 1.0)
    z = np.column_stack([np.ones(len(x)), x, y])
    coefficients, intercept = ridge((z * weights[:, None]).T @ z)

    mean = weights @ x / weights.sum()
    spread = np.sqrt(weights @ (x - mean) ** 2 / weights.sum())
    root, y_mean = np.sqrt(weights), weights @ y / weights.sum()
    rows = np.concatenate([root[:, None] * (x - mean) / spread, np.sqrt(5 * RIDGE) * np.eye(5)])
    expected, *_ = np.linalg.lstsq(rows, np.concatenate([root * (y - y_mean), np.zeros(5)]), rcond=None)
    assert coefficients * spread == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert intercept + mean @ coefficients == pytest.approx(y_mean)


def test_states_that_tell_the_length_bring_it_into_service_and_its_medians_are_near():
    world = World()
    world.rows(FEWEST_ROWS)
    assert not world.in_service  # fitted, but not yet judged
    world.rows(4 * FEWEST_ROWS)
    row = Row("new", 90, 60.0)
    world.read(row, 32)
    length = world.probe.lengths["new"]
    assert length.at == 32
    assert length.median == pytest.approx(90, rel=0.35)
    assert length.median <= length.upper < 300


def test_a_row_that_joins_is_predicted_beside_the_rows_that_were_read_before():
    world = World()
    world.rows(5 * FEWEST_ROWS)
    for name, joining, known in (("first", False, {"first"}), ("joins", True, {"first", "joins"}), ("x", False, {"x"})):
        world.read(Row(name, 90, 60.0), 0, joining)
        assert world.probe.lengths.keys() == known


@pytest.mark.parametrize("seed", range(2))
def test_states_that_tell_nothing_never_bring_it_into_service_beside_good_predictions(seed):
    world = World(seed)
    for _ in range(3):
        world.rows(60, telling=0.0, skill=0.95)
        assert not world.in_service


def test_it_is_in_service_only_at_the_stages_of_a_row_at_which_it_is_better():
    world = World(telling_from=64)
    world.rows(6 * FEWEST_ROWS, skill=0.3)
    for generated, known in ((0, False), (16, False), (48, False), (64, True), (112, True)):
        world.read(Row("asked", 150, 60.0), generated)
        assert ("asked" in world.probe.lengths) is known


def test_it_leaves_service_once_its_states_mislead_it():
    world = World()
    world.rows(4 * FEWEST_ROWS, skill=0.9)
    assert world.in_service
    world.rows(JUDGED_ROWS // 4, telling=-1.0, skill=0.9)
    assert not world.in_service


@pytest.mark.parametrize("seed", range(2))
def test_rows_cut_by_small_limits_do_not_teach_that_answers_are_short(seed):
    without, beside = World(seed), World(seed)
    without.rows(300)
    beside.rows(600, limits=(30, 10_000))
    medians = []
    for world in (without, beside):
        world.read(Row("long", 200, 60.0), 0)
        medians.append(world.probe.lengths["long"].median)
    assert medians[1] > 0.9 * medians[0] > 60


def test_rows_that_limits_cut_off_teach_which_rows_reach_their_limits():
    world = World()
    world.rows(5 * FEWEST_ROWS, limits=(64,))
    medians = []
    for total in (24, 400):
        world.read(Row(f"of {total}", total, 60.0, limit=64), 16)
        medians.append(world.probe.lengths[f"of {total}"].median)
    assert medians[0] < 45
    assert medians[1] == 64


def test_no_prediction_goes_beyond_the_limit_or_below_the_next_token():
    world = World()
    world.rows(4 * FEWEST_ROWS)
    world.read(Row("cut", 300, 60.0, limit=40), 32)
    assert world.probe.lengths["cut"] == (32, 40, 40)
    world.read(Row("ends", 33, 60.0), 32)
    assert world.probe.lengths["ends"].median >= 33


def test_its_upper_quantile_covers_nine_rows_in_ten():
    world = World()
    world.rows(4 * FEWEST_ROWS)
    covered = []
    for _ in range(200):
        total = max(1, round(60 * np.exp(0.8 * world.random.normal())))
        world.read(Row("new", total, 60.0), 0)
        covered.append(total <= world.probe.lengths["new"].upper)
    assert 0.8 <= np.mean(covered) <= 0.98


def test_states_that_overflow_spoil_no_prediction():
    world = World()
    world.rows(3 * FEWEST_ROWS)
    known = np.array([[20, 16, 100, 60, 90]], np.float64)
    for number, state in enumerate((np.nan, np.inf, -np.inf)):
        world.probe.read([f"o{number}"], known, np.full((1, STATES), state))
        assert 17 <= world.probe.lengths[f"o{number}"].median <= 100
        world.probe.ended(f"o{number}", 40)
    world.rows(FIT_EVERY)
    world.read(Row("after", 60, 60.0), 16)
    assert 30 <= world.probe.lengths["after"].median <= 120


def test_rows_that_leave_without_an_end_are_forgotten():
    world = World()
    known, states = np.full((MOST_OPEN, 5), 50.0) - [0, 20, 0, 0, 0], np.zeros((MOST_OPEN, STATES))
    world.probe.read([f"gone{n}" for n in range(MOST_OPEN)], known, states)
    world.probe.read(["new"], known[:1], states[:1])
    assert len(world.probe._open) == MOST_OPEN
    world.probe.ended("gone0", 40)
    world.probe.ended("never read", 40)
    assert len(world.probe._open) == MOST_OPEN
