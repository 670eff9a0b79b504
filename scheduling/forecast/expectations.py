"""States forecasts as lines over tokens, and calibrates them by earlier errors: intervals cover nine of ten answers.

Split-conformal prediction over the latest forecasts. The score of a forecast is the logarithm of the real over the
expected seconds, divided by the forecast's own spread; the quantiles of the latest scores turn the next forecast into
an expectation without bias and an interval. The only assumption is that the next errors are like the last ones.
Forecasts are compared with those of a similar horizon: the overhead of a decision and a message dominates a tenth of a
second and is negligible in a minute.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Stage = Literal["waiting", "running"]

INTERVAL = 0.9  # the share of answers that come within their intervals
# Scores of each stage and horizon: those of the last KEPT_S seconds, but at least KEPT. More follow a change of load
# later, fewer make the quantiles noisier. Errors of one burst are alike, so the scores must be of several bursts: at
# 100 answers a second, 200 are of two seconds, and intervals covered 73 % (docs/results/eta.md).
KEPT, KEPT_S = 200, 60.0
SPACED_S = 0.1  # beyond KEPT, scores are kept of answers that are this far apart, so that 600 are enough for KEPT_S
HORIZON = 3.0  # forecasts of one horizon differ by this factor at most; a larger one mixes more. Not tuned
FEWEST = 20  # scores needed for their quantiles: the outermost of fewer do not resolve the 5 % tails
# The quantiles of the scores while there are fewer: errors are taken to be normal, so 1.645 spreads cover 90 %.
UNKNOWN = (-1.645, 0.0, 1.645)
# Spread of a forecast from other causes than the answer's own length: arrivals, other answers, the machine. Only its
# ratio to the length's spread matters, since scores set the level; not tuned.
OTHER_SPREAD = 0.25
SHORTEST_S = 0.01  # shorter durations count as this, since their ratios are noise of the clock
LONGEST_S = 1e7  # four months: keeps forecast instants within the calendar's range
MOST_RATIO = 100.0  # real over expected seconds; larger ratios are clipped
MOST_LOG = math.log(MOST_RATIO)


@dataclass(frozen=True, slots=True)
class ResponseLine:
    """seconds = base_s + token_s · tokens."""

    base_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Return the seconds until an answer of `tokens` tokens, at least 0."""
        return max(0.0, self.base_s + self.token_s * tokens)


def fit_line(points: Sequence[tuple[float, float]]) -> ResponseLine:
    """Fit least squares to at least one (tokens, seconds); neither slope nor base is negative."""
    tokens, seconds = np.array(points, np.float64).T
    spread = float(tokens.var())
    slope = float(((tokens - tokens.mean()) * (seconds - seconds.mean())).mean()) / spread if spread > 0 else 0.0
    slope = min(max(0.0, slope), float(seconds.mean() / tokens.mean()))
    return ResponseLine(float(seconds.mean() - slope * tokens.mean()), slope)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected seconds until an answer, and the ends of its interval."""

    seconds: float
    low_s: float
    high_s: float

    def later(self, by_s: float) -> "Expectation":
        """Return this expectation, `by_s` seconds later."""
        return Expectation(self.seconds + by_s, self.low_s + by_s, self.high_s + by_s)

    def scaled(self, times: float) -> "Expectation":
        """Return this expectation with its seconds multiplied by `times`."""
        return Expectation(self.seconds * times, self.low_s * times, self.high_s * times)


@dataclass(frozen=True, slots=True)
class Band:
    """The lower, the middle and the upper quantile of the scores of one stage and horizon."""

    low: float
    middle: float
    high: float

    def around(self, seconds: float, spread: float) -> Expectation:
        """Return the corrected expectation and interval for a forecast in seconds with this spread."""
        seconds = max(seconds, SHORTEST_S)
        low, middle, high = (
            min(LONGEST_S, seconds * math.exp(min(max(score * spread, -MOST_LOG), MOST_LOG)))
            for score in (self.low, self.middle, self.high)
        )
        return Expectation(middle, low, high)


def spread_of(length_spread: float, service_share: float) -> float:
    """Return a forecast's spread from the spread of the length and the share of the remaining time that is service."""
    return math.hypot(OTHER_SPREAD, length_spread * service_share)


class IntervalCalibration:
    """Keeps the scores of earlier forecasts, by stage and horizon, and corrects new forecasts by their quantiles."""

    def __init__(self) -> None:
        # each score with the instant of its answer; None: those of all horizons
        self._scores: dict[tuple[Stage, int | None], deque[tuple[float, float]]] = {}
        self._bands: dict[tuple[Stage, int | None], Band] = {}  # cached until scores change

    def learn(self, stage: Stage, expected_s: float, spread: float, real_s: float, at: float) -> None:
        """Record a forecast of `expected_s` whose answer took `real_s` and came at `at`, not before those recorded."""
        ratio = max(real_s, SHORTEST_S) / max(expected_s, SHORTEST_S)
        score = min(max(math.log(ratio), -MOST_LOG), MOST_LOG) / spread
        for key in ((stage, None), (stage, _horizon(expected_s))):
            scores = self._scores.setdefault(key, deque())
            if len(scores) < KEPT or at >= scores[-1][0] + SPACED_S:
                scores.append((at, score))
                self._bands.pop(key, None)
            while len(scores) > KEPT and scores[0][0] < at - KEPT_S:
                scores.popleft()

    def around(self, stage: Stage, seconds: float, spread: float) -> Expectation:
        """Return the corrected expectation and interval for a forecast in seconds with this spread."""
        return self.band(stage, seconds).around(seconds, spread)

    def band(self, stage: Stage, seconds: float) -> Band:
        """Return the quantiles of the latest scores of this horizon, or of all horizons while it has few."""
        key: tuple[Stage, int | None] = (stage, _horizon(seconds))
        if len(self._scores.get(key, ())) < FEWEST:
            key = (stage, None)
        if key not in self._bands:
            self._bands[key] = _band(sorted(score for _, score in list(self._scores.get(key, ()))))
        return self._bands[key]


def _horizon(seconds: float) -> int:
    return math.floor(math.log(min(max(seconds, SHORTEST_S), LONGEST_S), HORIZON))


def _band(scores: list[float]) -> Band:
    """Compute the quantiles; the outer ones use n + 1 ranks for n scores, as conformal prediction requires."""
    if len(scores) < FEWEST:
        return Band(*UNKNOWN)
    outside = (1 - INTERVAL) / 2
    return Band(_quantile(scores, outside), _quantile(scores, 0.5), _quantile(scores, 1 - outside))


def _quantile(ordered: list[float], level: float) -> float:
    """Return the score of rank level · (n + 1), interpolated: the next score is below it with this probability."""
    rank = level * (len(ordered) + 1) - 1
    below = min(max(math.floor(rank), 0), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + min(1.0, max(0.0, rank - below)) * (ordered[above] - ordered[below])
