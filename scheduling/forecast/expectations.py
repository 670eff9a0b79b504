"""Calibrates forecasts by the errors of earlier ones, so that intervals cover nine of ten answers.

This is split-conformal prediction over the latest forecasts. The score of a forecast is the logarithm of the real over
the expected seconds, divided by the forecast's own spread; the quantiles of the latest scores turn the next forecast
into an expectation without bias and an interval. The only assumption is that the next errors are like the last ones.
For the upper quantile requests without an answer count, too: their scores will exceed the score of an answer now.
Otherwise late answers would be missing while the queue grows. Errors may still drift, so the levels of the intervals
follow the answers that miss their intervals (adaptive conformal inference, Gibbs and Candès 2021).
Forecasts are compared with forecasts of a similar horizon, because the overhead of a decision and a message dominates a
tenth of a second and is negligible in a minute.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scheduling.forecast.period_quantiles import Case, period_quantiles

Stage = Literal["waiting", "running"]

INTERVAL = 0.9  # the share of answers that come within their intervals
OUTSIDE = (1 - INTERVAL) / 2  # the share of answers before the interval, and the share after it
# An answer outside its interval lowers the logarithm of that side's level by about this. In a simulated service at 1.3
# times saturation 0.05 and 0.16 gave the same coverage.
ADAPT = 0.05
# Bounds of the levels. With a level above MOST_OUTSIDE, an interval that had been too wide would soon be too narrow,
# because a late answer is known to be outside only long after its interval was given.
LEAST_OUTSIDE, MOST_OUTSIDE = 0.01, 0.06
# The scores of the last KEPT_S seconds are kept for each stage and horizon, but at least KEPT. More scores follow a
# change of load later, fewer make the quantiles noisier. Errors of one burst are alike, so scores of several bursts are
# needed: 200 are of two seconds at 100 answers a second, and intervals by them covered 73 % (docs/results/eta.md).
KEPT, KEPT_S = 200, 60.0
SPACED_S = 0.1  # once there are KEPT scores, only answers this far apart get their own: at most 600 in KEPT_S
HORIZON = 3.0  # forecasts of one horizon differ by this factor at most; a larger factor mixes more; not tuned
FEWEST = 20  # quantiles are taken of at least this many scores; the outermost of fewer do not resolve the 5 % tails
# The quantiles while there are fewer scores: errors are assumed to be normal, so that ±1.645 spreads cover 90 %.
UNKNOWN = (-1.645, 0.0, 1.645)
# The spread of a forecast by other causes than the answer's own length: arrivals, other answers, the machine. Only its
# ratio to the length's spread matters, because the scores correct the size of the whole spread. Not tuned.
OTHER_SPREAD = 0.25
# An interval reaches at least this far to both sides, as a logarithm of seconds: errors that were alike for a while may
# all change with the load. Simulated under `baton` at 1.3 times saturation, forecasts erred by 3 %, but intervals of
# that width held 55 % of the answers.
LEAST_LOG = 0.1
SHORTEST_S = 0.01  # shorter durations count as this long, because the ratios of such durations are noise of the clock
LONGEST_S = 1e7  # four months; longer forecasts are cut, to keep their instants within the calendar's range
MOST_RATIO = 100.0  # larger ratios of real over expected seconds are clipped to this one
MOST_LOG = math.log(MOST_RATIO)


@dataclass(frozen=True, slots=True)
class ResponseLine:
    """A length or a time as a function of some tokens: base_s + token_s · tokens, in tokens or seconds."""

    base_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Return the seconds until an answer of `tokens` tokens, at least 0."""
        return max(0.0, self.base_s + self.token_s * tokens)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected seconds until an answer, and the two ends of their interval."""

    seconds: float
    low_s: float
    high_s: float
    known: bool = True  # the interval follows from FEWEST errors or more; otherwise it is assumed, and not told

    @property
    def told_s(self) -> tuple[float, float] | tuple[None, None]:
        """The ends of the interval as clients are told of them: None each while they are assumed."""
        return (self.low_s, self.high_s) if self.known else (None, None)

    def between(self, low_at_most_s: float, middle_at_most_s: float) -> "Expectation":
        """Return this expectation with these bounds of its lower end and its middle; its upper end is above both."""
        low_s, high_s = min(self.low_s, low_at_most_s), max(self.high_s, middle_at_most_s)
        return Expectation(min(self.seconds, middle_at_most_s), low_s, high_s, self.known)

    def at_most(self, seconds: float) -> "Expectation":
        """Return this expectation with an interval that ends at most `seconds` from now, but not before the middle."""
        return Expectation(self.seconds, self.low_s, max(self.seconds, min(self.high_s, seconds)), self.known)

    def later(self, by_s: float) -> "Expectation":
        """Return this expectation, `by_s` seconds later."""
        return Expectation(self.seconds + by_s, self.low_s + by_s, self.high_s + by_s, self.known)

    def scaled(self, times: float) -> "Expectation":
        """Return this expectation with its seconds multiplied by `times`."""
        return Expectation(self.seconds * times, self.low_s * times, self.high_s * times, self.known)


@dataclass(frozen=True, slots=True)
class Band:
    """The lower, the middle and the upper quantile of the scores of one stage and horizon."""

    low: float
    middle: float
    high: float
    known: bool = True

    def around(self, seconds: float, spread: float) -> Expectation:
        """Return the corrected expectation and interval for a forecast in seconds with this spread."""
        seconds = max(seconds, SHORTEST_S)
        low, middle, high = (
            min(LONGEST_S, seconds * math.exp(min(max(score * spread, -MOST_LOG), MOST_LOG)))
            for score in (self.low, self.middle, self.high)
        )
        return Expectation(middle, low, high, self.known)


def spread_of(length_spread: float, service_share: float) -> float:
    """Return a forecast's spread from the spread of the length and the share of the remaining time that is service."""
    return math.hypot(OTHER_SPREAD, length_spread * service_share)


@dataclass(frozen=True, slots=True)
class OpenForecast:
    """A forecast made `age_s` ago for a request that has no answer yet; it stands for `weight` such requests."""

    expected_s: float
    spread: float
    age_s: float
    weight: float = 1.0

    def case(self, since_s: float) -> Case:
        """Return the forecast as a case that goes on, at risk since `since_s` (seconds from now, negative)."""
        entered, left = (_score(self.expected_s, self.spread, age_s) for age_s in (self.age_s + since_s, self.age_s))
        return Case(entered, left, False, self.weight)


@dataclass(slots=True)
class _Score:
    """The score of an answer that came at `at`; `weight` also counts the later answers whose scores were not kept."""

    at: float
    expected_s: float
    spread: float
    real_s: float
    score: float
    weight: float = 1.0

    def entered(self, since: float) -> float:
        """Return the score that an answer at the instant `since` would have had."""
        return _score(self.expected_s, self.spread, self.real_s - (self.at - since))


_Key = tuple[Stage, int | None]  # a stage and a horizon; None stands for all horizons


class IntervalCalibration:
    """Keeps the scores of earlier forecasts, by stage and horizon, and corrects new forecasts by their quantiles."""

    def __init__(self) -> None:
        self._scores: dict[_Key, deque[_Score]] = {}
        self._open: dict[_Key, list[OpenForecast]] = {}
        self._opened_at = 0.0  # the instant at which the open forecasts were observed
        self._bands: dict[_Key, Band] = {}  # quantiles, cached until scores or levels change
        self._nearest: dict[_Key, _Key] = {}  # the horizon whose scores count for each horizon, cached until `learn`
        self._uppers: dict[_Key, dict[tuple[float, bool], float]] = {}  # scores by share, cached as long
        self._outside: dict[Stage, tuple[float, float]] = {}  # the shares of scores below and above the interval

    def learn(self, stage: Stage, expected_s: float, spread: float, real_s: float, at: float) -> None:
        """Record a forecast of `expected_s` whose answer took `real_s` and came at `at`, after all recorded ones."""
        score = _score(expected_s, spread, max(real_s, SHORTEST_S))
        for key in _keys(stage, expected_s):
            scores = self._scores.setdefault(key, deque())
            if len(scores) < KEPT or at >= scores[-1].at + SPACED_S:
                scores.append(_Score(at, expected_s, spread, real_s, score))
                self._bands.pop(key, None)
                self._uppers.pop(key, None)
            else:
                scores[-1].weight += 1
            while len(scores) > KEPT and scores[0].at < at - KEPT_S:
                scores.popleft()
        self._nearest.clear()

    def observe(self, stage: Stage, unanswered: Iterable[OpenForecast], now: float) -> None:
        """Replace the open forecasts of this stage by these, whose answers have not come by `now`."""
        found = defaultdict[_Key, list[OpenForecast]](list)
        for one in unanswered:
            for key in _keys(stage, one.expected_s):
                found[key].append(one)
        self._open = {key: kept for key, kept in self._open.items() if key[0] != stage} | found
        self._opened_at = now
        self._forget(stage)

    def judge(self, stage: Stage, before: float, within: float, after: float) -> None:
        """Adapt the levels of the intervals to the numbers of answers before, within and after their intervals."""
        answers = before + within + after
        if answers:
            below, above = self._outside.get(stage, (OUTSIDE, OUTSIDE))
            self._outside[stage] = _adapted(below, before, answers), _adapted(above, after, answers)
            self._forget(stage)

    def around(self, stage: Stage, seconds: float, spread: float) -> Expectation:
        """Return the corrected expectation and interval for a forecast in seconds with this spread."""
        return self.band(stage, seconds).around(seconds, spread)

    def band(self, stage: Stage, seconds: float) -> Band:
        """Return the quantiles of the latest scores of this horizon, or of the nearest one that has enough.

        Errors of other horizons are of another kind: a delay of 0.1 s is a third of a short wait, and nothing of a long
        one. If no horizon has enough scores, those of all horizons count.
        """
        key = self._key(stage, seconds)
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = self._quantiles(key)
        return band

    def within_s(
        self, stage: Stage, seconds: float, spread: float, share: float, *, unanswered: bool = True
    ) -> float | None:
        """Return the seconds within which this share of such answers comes, at most 1 - OUTSIDE of them.

        At that share it is the interval's upper end. Without `unanswered` only the answers that came count, so that it
        is too early while the queue grows. None while too few errors are known, and beyond MOST_RATIO.
        """
        key = self._key(stage, seconds)
        if len(self._scores.get(key, ())) < FEWEST:
            return None
        known, asked = self._uppers.setdefault(key, {}), (share, unanswered)
        if asked not in known:
            known[asked] = self._upper(key, share, unanswered=unanswered)
        if known[asked] * spread >= MOST_LOG:
            return None
        return Band(known[asked], known[asked], known[asked]).around(seconds, spread).seconds

    def _key(self, stage: Stage, seconds: float) -> _Key:
        own: _Key = stage, _horizon(seconds)
        key = self._nearest.get(own)
        if key is None:
            key = self._nearest[own] = self._nearest_of(stage, _horizon(seconds))
        return key

    def _nearest_of(self, stage: Stage, horizon: int) -> _Key:
        distances = {
            key: abs(key[1] - horizon)
            for key, scores in self._scores.items()
            if key[0] == stage and key[1] is not None and len(scores) >= FEWEST
        }
        return min(distances, key=lambda one: distances[one], default=(stage, None))

    def _forget(self, stage: Stage) -> None:
        self._bands = {key: band for key, band in self._bands.items() if key[0] != stage}
        self._uppers = {key: uppers for key, uppers in self._uppers.items() if key[0] != stage}

    def _quantiles(self, key: _Key) -> Band:
        scores = list(self._scores.get(key, ()))
        if len(scores) < FEWEST:
            return Band(*UNKNOWN, known=False)
        spread = sum(one.spread for one in scores) / len(scores)
        below, _ = self._outside.get(key[0], (OUTSIDE, OUTSIDE))
        ordered = sorted(one.score for one in scores)
        low = min(_quantile(ordered, below), _quantile(ordered, 0.5) - LEAST_LOG / spread)
        return Band(low, self._upper(key, 0.5), self._upper(key, 1 - OUTSIDE))

    def _upper(self, key: _Key, share: float, *, unanswered: bool = True) -> float:
        """Return the score that this share of the answers does not exceed, those that have not come included or not.

        The level of the interval's upper end is adapted, that of the median is not; those between them in proportion.
        """
        scores = self._scores[key]
        spread = sum(one.spread for one in scores) / len(scores)
        _, above = self._outside.get(key[0], (OUTSIDE, OUTSIDE))
        outward = (share - 0.5) / (0.5 - OUTSIDE)
        level = share - outward * (above - OUTSIDE)
        ordered = sorted(one.score for one in scores)
        score = max(_quantile(ordered, level), _quantile(ordered, 0.5) + outward * LEAST_LOG / spread)
        if unanswered and (still := self._open.get(key)):
            since = scores[0].at
            cases = [Case(one.entered(since), one.score, True, one.weight) for one in scores]
            cases += [one.case(since - self._opened_at) for one in still]
            score = max(score, *period_quantiles(cases, (level,), spread))
        return score


def _adapted(level: float, missed: float, answers: float) -> float:
    return min(max(level * math.exp(min(ADAPT * (OUTSIDE * answers - missed), 1.0)), LEAST_OUTSIDE), MOST_OUTSIDE)


def _keys(stage: Stage, expected_s: float) -> tuple[_Key, tuple[Stage, int]]:
    return (stage, None), (stage, _horizon(expected_s))


def _score(expected_s: float, spread: float, real_s: float) -> float:
    """Return the score of an answer that took `real_s`; -inf if `real_s` is not positive."""
    if real_s <= 0:
        return -math.inf
    ratio = max(real_s, SHORTEST_S) / max(expected_s, SHORTEST_S)
    return min(max(math.log(ratio), -MOST_LOG), MOST_LOG) / spread


def _horizon(seconds: float) -> int:
    return math.floor(math.log(min(max(seconds, SHORTEST_S), LONGEST_S), HORIZON))


def _quantile(ordered: list[float], level: float) -> float:
    """Return the score of rank level · (n + 1), interpolated, as conformal prediction requires.

    The next score is below it with this probability.
    """
    rank = level * (len(ordered) + 1) - 1
    below = min(max(math.floor(rank), 0), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + min(1.0, max(0.0, rank - below)) * (ordered[above] - ordered[below])
