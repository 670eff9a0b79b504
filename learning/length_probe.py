"""Predicts how long running rows will become, from states that the model computes for them anyway (TRAIL, EGTP).

A ridge regression predicts at which level of the distribution that was predicted at its arrival a row will end,

    y = P(G <= the row's length | G > its tokens so far),

from a middle layer's state of the newest token. It learns from rows as they end and forgets old ones slowly. A few very
long rows do not decide the fit, because y is at most 1. Of a row that its limit cut off, y is known to be above the
limit's level; it counts as halfway between that and 1. At each stage of a row, from 0, 32, 64, 128, ... tokens on, the
probe keeps its predictions to itself until their errors, on rows that it had not learned from, are clearly smaller than
those of the predictions at arrival.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.length_distributions import conditional_level, conditional_quantile, conditional_totals
from scheduling.request import COVERAGE, RowLength

FEWEST_ROWS = 60  # that ended before the first fit, as for the length predictor
# Rows that end between two fits: 32, later a quarter of all so far, at most 256. A fit takes 1 ms with 128 values and
# 13 with 576; every 16 rows it took 1 % of the bundled model's time. Fewer follow a change later.
FIT_EVERY, FIT_AFTER, MOST_UNLEARNED = 32, 1 / 4, 256
KEEP = 0.9999  # a reading's weight once another one is learned: half after 7,000 readings. Not tuned.
RIDGE = 1000.0  # readings that the prior weighs as much as: 300 to 3,000 ranked SmolLM2's rows about equally well
FIRST_STAGE = 32  # tokens of the first stage; each of the others ends at twice the tokens at which it begins
JUDGED_ROWS = 256  # newest rows whose errors decide: more react later, fewer are noisier. Not tuned.
FEWEST_JUDGED = 32  # fewer rows say too little of how much their errors differ; not tuned
CLEARLY = 3.0  # standard errors by which its errors must be smaller; fewer would let chance decide at times
MOST_OPEN = 1024  # rows read and not yet ended: those that leave the engine without an end must not fill the memory
# A reading is kept once its row is an eighth longer than at the last one kept: a long row's readings are much alike.
KEPT_AFTER = 1 + 1 / 8
# Predictions at arrival count as at least this uncertain, as otherwise y would be 0 or 1: between 1.6 and 4.7 it makes
# little difference.
LEAST_RATIO = 2.0
LOWEST, HIGHEST = 0.001, 0.999  # levels between which lengths are finite
LEAST_VARIANCE = 1e-9  # a feature below it is constant but for rounding, and is not standardized


@dataclass(frozen=True, slots=True)
class _Fit:
    coefficients: Floats
    intercept: float
    in_service: Mapping[int, tuple[float, float]]  # by stage in which it is: the errors' quantiles at 0.5 and COVERAGE


class LengthProbe:
    """The probe of one engine's rows; one thread reads, learns and fits, others may read `lengths`."""

    def __init__(self) -> None:
        self.lengths: Mapping[str, RowLength] = {}
        # what was read of rows that run: tokens, limit, median and upper quantile at arrival, the predicted y, features
        self._open: dict[str, list[Floats]] = {}
        self._ended = 0
        self._unlearned: list[tuple[list[Floats], int]] = []  # of rows that ended: readings, tokens
        self._moments: Floats | None = None  # weighted sums of z·zᵀ, where z = (1, features, y)
        self._fit: _Fit | None = None
        # by stage, of each row: the readings for which there was a prediction, with its length and its y
        self._judged: defaultdict[int, deque[Floats]] = defaultdict(lambda: deque(maxlen=JUDGED_ROWS))

    def read(self, ids: Sequence[str], known: Floats, states: Floats) -> None:
        """Predict all running rows: from their states, (rows, values), and what else is known of them, (rows, 5).

        That is the tokens of their prompts, their own so far, their limits, and the median and upper quantile of their
        lengths as predicted at their arrival.
        """
        prompt, generated, limit, predicted, upper = known.T
        totals, _ = conditional_totals(predicted, upper, generated)
        upper, most, fit = np.maximum(upper, LEAST_RATIO * predicted), limit - generated, self._fit
        by_arrival = np.log((totals - generated).clip(1.0, most))
        finite = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)  # of a half-precision model that overflows
        features = np.column_stack([by_arrival, np.log1p(generated), np.log(prompt), finite])
        by_probe = np.full(len(ids), np.nan) if fit is None else fit.intercept + features @ fit.coefficients
        readings = np.column_stack([generated, limit, predicted, upper, by_probe, features]).astype(np.float32)
        for name, reading in zip(ids, readings, strict=True):
            kept = self._open.setdefault(name, [])
            if not kept or reading[0] >= KEPT_AFTER * kept[-1][0]:
                kept.append(reading)
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        in_service = {} if fit is None else fit.in_service
        stages = _stages(generated).tolist()
        serving = [row for row, stage in enumerate(stages) if stage in in_service]
        lengths: dict[str, RowLength] = {}
        if serving:
            y = by_probe[serving] + np.array([in_service[stages[row]] for row in serving]).T
            totals = _totals(y, predicted[serving], upper[serving], generated[serving])
            each = np.rint([generated[serving], *totals.clip(generated[serving] + 1, limit[serving])]).astype(int).T
            lengths = {ids[row]: RowLength(*length) for row, length in zip(serving, each.tolist(), strict=True)}
        self.lengths = lengths

    def ended(self, row_id: str, tokens: int) -> None:
        """Learn from a row that ended with this many tokens, by itself or at its limit."""
        if row_id in self._open:
            self._unlearned.append((self._open.pop(row_id), tokens))
            self._ended += 1
            often = min(MOST_UNLEARNED, max(FIT_EVERY, int(FIT_AFTER * self._ended)))
            if self._ended >= FEWEST_ROWS and len(self._unlearned) >= often:
                self._learn()

    def _learn(self) -> None:
        """Judge the predictions of the rows that ended, add the rows to the moments, and fit again."""
        each, totals = zip(*self._unlearned, strict=True)
        self._unlearned.clear()
        readings, sizes = np.array([*chain.from_iterable(each)], np.float64), [*map(len, each)]
        (generated, limit, predicted, upper, by_probe), features = readings[:, :5].T, readings[:, 5:]
        lengths = np.repeat(totals, sizes).astype(np.float64)
        levels = conditional_level(predicted, upper, np.maximum(generated, 1.0), lengths)
        cut = lengths >= limit
        y = np.where(cut, np.fmax((levels + 1) / 2, by_probe.clip(0.0, 1.0)), levels)
        self._judge(
            np.repeat(np.arange(len(sizes)), sizes), _stages(generated), np.column_stack([readings[:, :6], lengths, y])
        )
        z = np.column_stack([np.ones(len(readings)), features, y])
        new = z.T @ z
        self._moments = new if self._moments is None else KEEP ** len(z) * self._moments + new
        self._fit = _Fit(*ridge(self._moments), self._in_service())

    def _judge(self, rows: Ints, stages: Ints, readings: Floats) -> None:
        """Keep the readings for which there was a prediction, by stage and row."""
        predicted = ~np.isnan(readings[:, 4])
        for stage in np.unique(stages[predicted]).tolist():
            of_stage = np.flatnonzero((stages == stage) & predicted)
            of_rows = np.flatnonzero(np.diff(rows[of_stage])) + 1
            self._judged[stage] += np.split(readings[of_stage], of_rows)

    def _in_service(self) -> dict[int, tuple[float, float]]:
        """Return the quantiles of the errors at the stages at which lengths are clearly better than the arrival's.

        The error of a predicted number of tokens still to come is |predicted - true| / (predicted + true), at most 1:
        absolute errors let the longest rows decide, and those of logarithms rows that are about to end.
        """
        found = {}
        for stage, rows in self._judged.items():
            generated, limit, predicted, upper, by_probe, by_arrival, totals, y = np.concatenate(rows).T
            median, upper_error = np.quantile(y - by_probe, [0.5, COVERAGE])
            left, known = totals - generated, (predicted, upper, generated)
            by_probe = _totals(by_probe + median, *known).clip(generated + 1, limit) - generated
            arrival_error, probe_error = (
                np.abs(each - left) / (each + left) for each in (np.exp(by_arrival), by_probe)
            )
            sizes = np.array([*map(len, rows)])
            smaller = np.add.reduceat(arrival_error - probe_error, np.cumsum(sizes) - sizes) / sizes
            if len(rows) >= FEWEST_JUDGED and smaller.mean() > CLEARLY * smaller.std(ddof=1) / np.sqrt(len(rows)):
                found[stage] = float(median), float(upper_error)
        return found


def _totals(y: Floats, predicted: Floats, upper: Floats, generated: Floats) -> Floats:
    """Return the lengths at these levels of the rows' distributions."""
    y = y.clip(LOWEST, HIGHEST)
    return conditional_quantile(predicted, upper, np.maximum(generated, 1.0), y / (1 - y))


def _stages(generated: Floats) -> Ints:
    """Return the stages of rows with so many tokens: 0, 1, 2, ... from 0, 32, 64, ... tokens on."""
    return (np.log2(np.maximum(generated, FIRST_STAGE / 2) / FIRST_STAGE) + 1).astype(np.int64)


def ridge(moments: Floats) -> tuple[Floats, float]:
    """Return coefficients and intercept of the ridge regression on standardized features, from sums of z·zᵀ."""
    weight = moments[0, 0]
    mean = moments[0, 1:] / weight
    covariance = moments[1:, 1:] / weight - np.outer(mean, mean)
    variance = np.diag(covariance)[:-1]
    spread = np.sqrt(np.where(variance > LEAST_VARIANCE, variance, 1.0))
    correlation = covariance[:-1, :-1] / np.outer(spread, spread)
    penalty = RIDGE / weight * np.eye(len(spread))
    coefficients = np.linalg.solve(correlation + penalty, covariance[:-1, -1] / spread) / spread
    return coefficients, float(mean[-1] - mean[:-1] @ coefficients)
