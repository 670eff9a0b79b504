"""Predicts how long running rows will become, from states that the model computes for them anyway (TRAIL, EGTP).

At its arrival, a distribution of a row's length is predicted. A ridge regression predicts at which level the row ends,

    y = P(G <= the row's length | G > its tokens so far),

from middle layers' states of the newest token. It learns from rows as they end and forgets old rows slowly. A few very
long rows do not decide the fit, because y is at most 1. For a row that its limit cut off, y is above the level of the
limit; it is taken to be CUT of the way from that level to 1. A row's stages begin at 0, 32, 64, 128, ... tokens. The
probe serves at a stage only once its errors on rows that it had not learned from are clearly smaller there than the
errors of the predictions at arrival.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.length_distributions import conditional_level, conditional_quantile, conditional_totals
from scheduling.request import COVERAGE, RowLength

FEWEST_ROWS = 60  # the first fit waits for this many ended rows, as that of the length predictor does
# Between two fits 60 rows end, later a third of all rows so far, at most 256. A fit takes 1 ms with 128 values of a
# state and 13 ms with 576. A fit every 16 rows took 1 % of the bundled model's time; one every 32, later a quarter of
# all, gave the same tau as the present rule.
FIT_EVERY, FIT_AFTER, MOST_UNLEARNED = 60, 1 / 3, 256
KEEP = 0.9999  # each new reading multiplies the weights of older ones by this: half after 7,000. Not tuned.
# The prior weighs as much as this many readings for each value of a state: 1 ranked SmolLM2's rows alike, 5 worse.
RIDGE = 2.0
# With 0.5, SmolLM2's rows were ranked worse. With 1 they were not ranked better, and rows cut by small limits may then
# keep the probe out of service.
CUT = 0.9
FIRST_STAGE = 32  # the first stage has this many tokens; each other one ends at twice the tokens at which it begins
JUDGED_ROWS = 256  # the errors of this many newest rows decide: more react later, fewer are noisier. Not tuned.
FEWEST_JUDGED = 32  # fewer rows say too little about how much their errors differ; not tuned
# The probe's errors must be smaller by this many standard errors: with 3 it serves later, with 2 chance may decide.
CLEARLY = 2.5
MOST_OPEN = 1024  # most rows with readings that have not ended, because rows may leave the engine without an end
# A reading is kept once its row is an eighth longer than at the last one kept: a long row's readings are much alike.
KEPT_AFTER = 1 + 1 / 8
# A predicted upper quantile counts as at least this many times the median, because y would otherwise be 0 or 1, and the
# prediction at arrival would decide the order. With 2, SmolLM2's rows were ranked worse, with 4 and 6 alike.
LEAST_RATIO = 3.0
LOWEST, HIGHEST = 0.001, 0.999  # levels between which lengths are finite
KNOWN, FACTS = 5, 3  # number of columns before the state: in a reading, and in the features
LEAST_VARIANCE = 1e-9  # a feature with a smaller variance is constant except for rounding, and is not standardized


@dataclass(frozen=True, slots=True)
class _Fit:
    coefficients: Floats
    intercept: float
    in_service: Mapping[int, tuple[float, float]]  # the errors' quantiles at 0.5 and COVERAGE, by stage in service


class LengthProbe:
    """The probe of one engine's rows; one thread calls its methods, other threads may read `lengths`."""

    def __init__(self) -> None:
        self.lengths: Mapping[str, RowLength] = {}
        # the readings of each running row: its KNOWN values, then its state
        self._open: dict[str, list[Floats]] = {}
        self._ended = 0
        self._unlearned: list[tuple[list[Floats], int]] = []  # readings and tokens of rows that ended
        self._moments: Floats | None = None  # weighted sums of z·zᵀ, where z = (1, features, y)
        self._fit: _Fit | None = None
        # by stage, a row for each reading: its KNOWN values, the number of its row, the y that the probe predicted, the
        # row's length, and the levels of that length and of the limit
        self._judged: dict[int, Floats] = {}

    def read(self, ids: Sequence[str], known: Floats, states: Floats, joining: bool = False) -> None:
        """Keep a reading of all running rows, and predict the rows at whose stages the probe is in service.

        With `joining` these are only rows that join the others, which keep their lengths. A reading is a row's state,
        (rows, values), and its `known` values, (rows, 5): the prompt's tokens, the tokens generated so far, the limit,
        and the median and upper quantile of the length as predicted at arrival.
        """
        readings = np.empty((len(ids), KNOWN + states.shape[1]), np.float32)
        readings[:, :KNOWN], readings[:, KNOWN:] = known, states
        for name, generated, reading in zip(ids, known[:, 1].tolist(), readings, strict=True):
            kept = self._open.setdefault(name, [])
            if not kept or generated >= KEPT_AFTER * kept[-1][1]:
                kept.append(reading)
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        found = self._predicted(self._fit, ids, readings) if self._fit and self._fit.in_service else {}
        self.lengths = {**self.lengths, **found} if joining else found

    def _predicted(self, fit: _Fit, ids: Sequence[str], readings: Floats) -> dict[str, RowLength]:
        """Return the lengths of the rows at whose stages the probe is in service."""
        stages = _stages(readings[:, 1]).tolist()
        serving = [row for row, stage in enumerate(stages) if stage in fit.in_service]
        if not serving:
            return {}
        _, generated, limit, predicted, upper = known = _distributions(of_rows := readings[serving])
        y = fit.intercept + _features(known, of_rows) @ fit.coefficients
        y = y + np.array([fit.in_service[stages[row]] for row in serving]).T
        totals = _totals(y, predicted, upper, generated).clip(generated + 1, limit)
        each = np.rint([generated, *totals]).astype(int).T
        return {ids[row]: RowLength(*length) for row, length in zip(serving, each.tolist(), strict=True)}

    def ended(self, row_id: str, tokens: int) -> None:
        """Learn from a row that ended with this many tokens, whether by itself or at its limit."""
        if row_id in self._open:
            self._unlearned.append((self._open.pop(row_id), tokens))
            self._ended += 1
            often = min(MOST_UNLEARNED, max(FIT_EVERY, int(FIT_AFTER * self._ended)))
            if self._ended >= FEWEST_ROWS and len(self._unlearned) >= often:
                self._learn()

    def _learn(self) -> None:
        """Judge the present fit on the rows that ended, add these rows to the moments, and fit again."""
        each, totals = zip(*self._unlearned, strict=True)
        self._unlearned.clear()
        readings, sizes = np.array([*chain.from_iterable(each)], np.float64), [*map(len, each)]
        _, generated, limit, predicted, upper = known = _distributions(readings)
        features, lengths = _features(known, readings), np.repeat(totals, sizes).astype(np.float64)
        levels, limits = conditional_level(predicted, upper, np.maximum(generated, 1.0), np.stack([lengths, limit]))
        if self._fit is not None:
            rows = np.repeat(np.arange(self._ended - len(sizes), self._ended), sizes)
            by_probe = self._fit.intercept + features @ self._fit.coefficients
            self._judge(np.column_stack([readings[:, :KNOWN], rows, by_probe, lengths, levels, limits]))
        z = np.column_stack(
            [np.ones(len(readings)), features, np.where(lengths >= limit, levels + CUT * (1 - levels), levels)]
        )
        new = z.T @ z
        self._moments = new if self._moments is None else KEEP ** len(z) * self._moments + new
        self._fit = _Fit(*ridge(self._moments), self._in_service())

    def _judge(self, readings: Floats) -> None:
        """Keep the readings of each stage's newest rows."""
        stages = _stages(readings[:, 1])
        for stage in np.unique(stages).tolist():
            new = readings[stages == stage]
            found = np.concatenate([self._judged.get(stage, new[:0]), new])
            self._judged[stage] = found[_firsts(found[:, KNOWN])[-JUDGED_ROWS:][0] :]

    def _in_service(self) -> dict[int, tuple[float, float]]:
        """Return the errors' quantiles, by stage, where the probe's lengths are clearly better than those at arrival.

        Compares square roots of the errors in tokens: by the errors themselves the longest rows would decide, by
        logarithms the rows that are about to end. If a row was cut off, no level beyond its limit counts as an error.
        """
        found = {}
        for stage, readings in self._judged.items():
            _, generated, limit, predicted, upper = _distributions(readings)
            rows, by_probe, totals, levels, limits = readings[:, KNOWN:].T
            median, upper_error = np.quantile(levels - np.minimum(by_probe, limits), [0.5, COVERAGE])
            by_probe = _totals(by_probe + median, predicted, upper, generated)
            by_arrival, _ = conditional_totals(predicted, readings[:, KNOWN - 1], generated)
            of_arrival, of_probe = (
                np.sqrt(np.abs(each.clip(generated + 1, limit) - totals)) for each in (by_arrival, by_probe)
            )
            firsts = _firsts(rows)
            sizes = np.diff(firsts, append=len(rows))
            smaller = np.add.reduceat(of_arrival - of_probe, firsts) / sizes
            if len(sizes) >= FEWEST_JUDGED and smaller.mean() > CLEARLY * smaller.std(ddof=1) / np.sqrt(len(sizes)):
                found[stage] = float(median), float(upper_error)
        return found


def _distributions(readings: Floats) -> Floats:
    """Return the known values of rows, (KNOWN, readings), with upper quantiles of at least LEAST_RATIO medians."""
    known = readings[:, :KNOWN].T.astype(np.float64)
    np.maximum(known[-1], LEAST_RATIO * known[-2], out=known[-1])
    return known


def _features(known: Floats, readings: Floats) -> Floats:
    """Return the regression's features, (readings, 3 + values); state values that overflowed become 0.

    `known` is the result of `_distributions` for these readings.
    """
    prompt, generated, limit, predicted, upper = known
    left = conditional_quantile(predicted, upper, np.maximum(generated, 1.0), 1.0) - generated
    features = np.empty((len(readings), FACTS + readings.shape[1] - KNOWN))
    features[:, :FACTS] = np.log([left.clip(1.0, limit - generated), 1.0 + generated, prompt]).T
    features[:, FACTS:] = readings[:, KNOWN:]
    finite = np.isfinite(features)
    return features if finite.all() else np.where(finite, features, 0.0)


def _totals(y: Floats, predicted: Floats, upper: Floats, generated: Floats) -> Floats:
    """Return the lengths at the levels `y` of the rows' distributions."""
    y = y.clip(LOWEST, HIGHEST)
    return conditional_quantile(predicted, upper, np.maximum(generated, 1.0), y / (1 - y))


def _firsts(rows: Floats) -> Ints:
    """Return the index of each row's first reading."""
    return np.flatnonzero(np.diff(rows, prepend=-1.0))


def _stages(generated: Floats) -> Ints:
    """Return the stages of rows with `generated` tokens: 0, 1, 2, ... from 0, 32, 64, ... tokens on."""
    return (np.log2(np.maximum(generated, FIRST_STAGE / 2) / FIRST_STAGE) + 1).astype(np.int64)


def ridge(moments: Floats) -> tuple[Floats, float]:
    """Return coefficients and intercept of a ridge regression on standardized features; `moments` are sums of z·zᵀ."""
    weight = moments[0, 0]
    mean = moments[0, 1:] / weight
    covariance = moments[1:, 1:] / weight - np.outer(mean, mean)
    variance = np.diag(covariance)[:-1]
    spread = np.sqrt(np.where(variance > LEAST_VARIANCE, variance, 1.0))
    correlation = covariance[:-1, :-1] / np.outer(spread, spread)
    penalty = RIDGE * len(spread) / weight * np.eye(len(spread))
    coefficients = np.linalg.solve(correlation + penalty, covariance[:-1, -1] / spread) / spread
    return coefficients, float(mean[-1] - mean[:-1] @ coefficients)
