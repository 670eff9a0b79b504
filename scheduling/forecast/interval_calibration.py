"""How far forecasts err, learned from those that have come true: intervals that cover nine of ten answers.

Split-conformal prediction over the latest forecasts. The score of a forecast is the logarithm of the real over the
expected seconds, divided by the forecast's own spread; the quantiles of the latest scores turn the next forecast into
an expectation without bias and an interval. Nothing is assumed of the errors but that the next ones are like the last.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

Stage = Literal["waiting", "running"]

INTERVAL = 0.9  # the share of answers that come within their intervals
KEPT = 200  # scores of each stage: more follow a change of load later, fewer make the quantiles noisier. Not tuned
FEWEST = 20  # with fewer scores the outermost ones say nothing of the 5 % behind them
# Before that, errors are taken to be normal: 1.645 spreads cover 90 %.
UNKNOWN = (-1.645, 0.0, 1.645)
# Spread of a forecast beside that of the answer's own length: arrivals, other answers' lengths, the machine. Only the
# ratio to the length's spread counts, since scores set the level; not tuned.
OTHER_SPREAD = 0.25
SHORTEST_S = 0.01  # ratios of shorter durations are noise of the clock
LONGEST_S = 1e7  # four months: no instant that a forecast names leaves the calendar
MOST_RATIO = 100.0  # of real and expected seconds; an error beyond counts as this one, and none is expected
MOST_LOG = math.log(MOST_RATIO)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Seconds until an answer: expected, and the ends of the interval."""

    seconds: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Band:
    """The lower, the middle and the upper quantile of the scores of a stage."""

    low: float
    middle: float
    high: float

    def around(self, seconds: float, spread: float) -> Expectation:
        """The expectation that a forecast of so many seconds, of this spread, is worth."""
        seconds = max(seconds, SHORTEST_S)
        low, middle, high = (
            min(LONGEST_S, seconds * math.exp(min(max(score * spread, -MOST_LOG), MOST_LOG)))
            for score in (self.low, self.middle, self.high)
        )
        return Expectation(middle, low, high)


def spread_of(length_spread: float, service_share: float) -> float:
    """A forecast's spread, if the own length's logarithm spreads so and serving takes this share of the time left."""
    return math.hypot(OTHER_SPREAD, length_spread * service_share)


class IntervalCalibration:
    """The scores of each stage, from forecasts made and answers come."""

    def __init__(self) -> None:
        self._scores: dict[Stage, deque[float]] = {"waiting": deque(maxlen=KEPT), "running": deque(maxlen=KEPT)}

    def learn(self, stage: Stage, expected_s: float, spread: float, real_s: float) -> None:
        """A forecast has come true."""
        ratio = max(real_s, SHORTEST_S) / max(expected_s, SHORTEST_S)
        self._scores[stage].append(min(max(math.log(ratio), -MOST_LOG), MOST_LOG) / spread)

    def band(self, stage: Stage) -> Band:
        """Quantiles of the latest scores; with n of them the outer ones are a rank of n + 1 further out."""
        scores = sorted(self._scores[stage])
        if len(scores) < FEWEST:
            return Band(*UNKNOWN)
        outside = (1 - INTERVAL) / 2
        return Band(_quantile(scores, outside), _quantile(scores, 0.5), _quantile(scores, 1 - outside))


def _quantile(ordered: list[float], level: float) -> float:
    """Of rank level · (n + 1), interpolated, so that a next score is below it with this probability."""
    rank = level * (len(ordered) + 1) - 1
    below = min(max(math.floor(rank), 0), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + min(1.0, max(0.0, rank - below)) * (ordered[above] - ordered[below])
