"""Predicts how long running rows will become, from states that the model computes for them anyway (TRAIL, EGTP).

A ridge regression corrects the logarithm of the tokens that the prediction at a row's arrival still expects, by a
middle layer's state of the newest token. It learns from rows as they end and forgets old ones slowly. At each stage of
a row, from 0, 32, 64, 128, ... tokens on, it keeps its predictions to itself until their errors, on rows that it had
not learned from, are clearly smaller than those of the predictions at arrival.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats, Ints
from scheduling.length_distributions import conditional_totals
from scheduling.request import COVERAGE, RowLength

FEWEST_ROWS = 60  # that ended before the first fit, as for the length predictor
# Rows that end between two fits: 16, later an eighth of all so far, at most 256. A fit takes milliseconds, which even
# rows of few tokens must not pay often; fewer fits follow a change later. Not tuned.
FIT_EVERY, FIT_AFTER, MOST_UNLEARNED = 16, 1 / 8, 256
KEEP = 0.9999  # a reading's weight once another one is learned: half after 7,000 readings. Not tuned.
RIDGE = 1000.0  # readings that the prior weighs as much as: 300 to 3,000 ranked SmolLM2's rows about equally well
FIRST_STAGE = 32  # tokens of the first stage; each of the others ends at twice the tokens at which it begins
JUDGED_ROWS = 256  # newest rows whose errors decide: more react later, fewer are noisier. Not tuned.
FEWEST_JUDGED = 32  # fewer rows say too little of how much their errors differ; not tuned
CLEARLY = 3.0  # standard errors by which its errors must be smaller; fewer would let chance decide at times
MOST_OPEN = 1024  # rows read and not yet ended: those that leave the engine without an end must not fill the memory
LEAST_VARIANCE = 1e-9  # a feature below it is constant but for rounding, and is not standardized


@dataclass(frozen=True, slots=True)
class _Fit:
    coefficients: Floats
    intercept: float
    # by stage in which it is in service: the quantiles of the logarithm's errors, at 0.5 and COVERAGE
    in_service: Mapping[int, tuple[float, float]]


class LengthProbe:
    """The probe of one engine's rows; one thread reads, learns and fits, others may read `lengths`."""

    def __init__(self) -> None:
        self.lengths: Mapping[str, RowLength] = {}
        # the readings of rows that run: tokens, logarithms of what the limit leaves and of the prediction, features
        self._open: dict[str, list[Floats]] = {}
        self._ended = 0
        self._unlearned: list[tuple[Floats, int, bool]] = []  # of rows that ended: readings, tokens, whether cut
        self._moments: Floats | None = None  # weighted sums of z·zᵀ, where z = (1, features, target)
        self._fit: _Fit | None = None
        # by stage, of each row: how much smaller the probe's mean error was than the arrival's, and the signed errors
        self._judged: defaultdict[int, deque[tuple[float, Floats]]] = defaultdict(lambda: deque(maxlen=JUDGED_ROWS))

    def read(self, ids: Sequence[str], known: Floats, states: Floats) -> None:
        """Predict all running rows: from their states, (rows, values), and what else is known of them, (rows, 5).

        That is the tokens of their prompts, their own so far, their limits, and the median and upper quantile of their
        lengths as predicted at their arrival.
        """
        prompt, generated, limit, predicted, upper = known.T
        totals, _ = conditional_totals(predicted, upper, generated)
        log_most, fit = np.log(limit - generated), self._fit
        by_arrival = np.log(np.maximum(1.0, totals - generated)).clip(0.0, log_most)
        finite = np.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)  # of a half-precision model that overflows
        features = np.column_stack([by_arrival, np.log1p(generated), np.log(prompt), finite])
        by_probe = np.full(len(ids), np.nan)
        if fit is not None:
            by_probe = by_arrival + fit.intercept + features @ fit.coefficients
        readings = np.column_stack([generated, log_most, by_probe, features])
        for name, reading in zip(ids, readings, strict=True):
            self._open.setdefault(name, []).append(reading)
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        in_service = {} if fit is None else fit.in_service
        quantiles = np.array([in_service.get(stage, (np.nan, np.nan)) for stage in _stages(generated).tolist()]).T
        left = np.exp((by_probe + quantiles).clip(0.0, log_most))
        each = zip(ids, np.rint([generated, *(generated + left)]).T, strict=True)
        self.lengths = {name: RowLength(*map(int, length)) for name, length in each if not np.isnan(length[1])}

    def ended(self, row_id: str, tokens: int, cut: bool) -> None:
        """Learn from a row that ended with this many tokens, by itself or, if `cut`, at its limit."""
        if row_id in self._open:
            self._unlearned.append((np.array(self._open.pop(row_id)), tokens, cut))
            self._ended += 1
            often = min(MOST_UNLEARNED, max(FIT_EVERY, int(FIT_AFTER * self._ended)))
            if self._ended >= FEWEST_ROWS and len(self._unlearned) >= often:
                self._learn()

    def _learn(self) -> None:
        """Judge the predictions of the rows that ended, add the rows to the moments, and fit again.

        Only that a cut row is at least as long is known, so it teaches nothing where it was predicted longer.
        """
        each, totals, cuts = zip(*self._unlearned, strict=True)
        self._unlearned.clear()
        readings, sizes = np.concatenate(each), [*map(len, each)]
        (generated, log_most, by_probe), features = readings[:, :3].T, readings[:, 3:]
        logs, by_arrival = np.log(np.maximum(1.0, np.repeat(totals, sizes) - generated)), features[:, 0]
        # both predictions end at the limit, so that a cut row that was predicted longer is no error
        smaller = np.abs(logs - by_arrival) - np.abs(logs - by_probe.clip(0.0, log_most))
        self._judge(np.repeat(np.arange(len(sizes)), sizes), _stages(generated), smaller, logs - by_probe)
        targets = np.where(np.repeat(cuts, sizes), np.fmax(logs, by_probe), logs) - by_arrival
        z = np.column_stack([np.ones(len(readings)), features, targets])
        new = z.T @ z
        self._moments = new if self._moments is None else KEEP ** len(z) * self._moments + new
        self._fit = _Fit(*ridge(self._moments), self._in_service())

    def _judge(self, rows: Ints, stages: Ints, smaller: Floats, errors: Floats) -> None:
        """Keep how much smaller the probe's errors were than the arrival's, and its errors, by stage and row."""
        predicted = ~np.isnan(errors)
        for stage in np.unique(stages[predicted]).tolist():
            of_stage = np.flatnonzero(predicted & (stages == stage))
            of_rows = np.split(of_stage, np.flatnonzero(np.diff(rows[of_stage])) + 1)
            self._judged[stage] += [(float(smaller[row].mean()), errors[row]) for row in of_rows]

    def _in_service(self) -> dict[int, tuple[float, float]]:
        """Return the quantiles of the errors at the stages at which they are clearly smaller than the arrival's."""
        found = {}
        for stage, rows in self._judged.items():
            smaller = np.array([each for each, _ in rows])
            if len(rows) >= FEWEST_JUDGED and smaller.mean() > CLEARLY * smaller.std(ddof=1) / np.sqrt(len(rows)):
                median, upper = np.quantile(np.concatenate([errors for _, errors in rows]), [0.5, COVERAGE])
                found[stage] = float(median), float(upper)
        return found


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
