"""Learns the seconds of prefills and iterations from a worker's own steps: curves of the SCLS paper, Eq. (3)-(4).

The curves of a worker are linear in what its steps compute, so they are fitted to sums over windows of steps. The
worker fits them itself within seconds of traffic, and reports them to the database. No trainer is needed: a fit takes
milliseconds, and nobody but the worker sees its steps. As with the other learned models, a fit goes into service only
if it predicts the newest windows better than the curves in service.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from learning.estimators.cost_curves import DEFAULT_CURVES, FEASIBLE, terms
from scheduling.costs import Floats, LearnedCurves, ServingCurves, StepWindow

# Windows are kept by kind: rows and cached tokens up to a factor of two, and whether they prefilled. So a long time at
# one load does not displace the windows of other loads. Both numbers bound a fit to some milliseconds; not tuned.
KEPT_OF_A_KIND = 24
KINDS = 32
HALF_LIFE_S = 120.0  # a window counts half as much after this long: a machine's other work changes within minutes
FEWEST_WINDOWS = 8  # the first fit waits for this many windows: an outlier is then at most an eighth of the data
NEWEST = 64  # a fit is judged and its level is set by this many newest windows, some seconds of traffic; not tuned
LEAST_GAIN = 0.01  # new curves must lower the relative error by this, because policies rebuild tables for them
# The initial curves count as this many windows; they give the costs of batches not seen yet. Not tuned.
PRIOR_WEIGHT = 0.5
# In the first reweighting the initial curves count this much less, so that wrong initial curves do not dominate: the
# relative error of a too short prediction is at most 1, but that of a too long one is unbounded.
FIRST_PRIOR_WEIGHT = 0.01  # 0.1 and 0.001 fit the same
PRIOR_SIZES, PRIOR_LENGTHS = (1, 4, 16, 64), (16, 128, 512)
REFITS = 12  # iterations of reweighted least squares, after which its changes are under a percent
LEAST_SCALE = 0.02  # relative errors below this are noise of the clock; the bound also keeps the weights finite
# constant of Cauchy's weights: 95 % of least squares' efficiency for normal errors (Holland and Welsch, 1977)
CAUCHY = 2.385

Sums = npt.NDArray[np.float64]  # (windows, 8), in the order of p1..p4 of Eq. (3) and d1..d4 of Eq. (4)


class StepCosts:
    """The costs that one worker has learned from its steps; one thread owns it."""

    def __init__(self, prior: ServingCurves | None = None) -> None:
        """`prior` are the curves measured before any traffic; None if nothing was measured."""
        self._prior = prior or DEFAULT_CURVES
        self._kinds: dict[tuple[int, int, bool], deque[StepWindow]] = {}
        self._newest: deque[StepWindow] = deque(maxlen=NEWEST)
        self._unseen = 0  # windows since the last fit
        self._versions = 0
        self.in_service: LearnedCurves | None = None

    def add(self, windows: Iterable[StepWindow]) -> None:
        """Add windows in the order in which they ended."""
        for window in windows:
            if window.seconds > 0 and any(window.sums):
                # the kind seen last is moved to the end, so that the kind not seen for longest is dropped first
                of_kind = self._kinds.pop(window.kind, None) or deque(maxlen=KEPT_OF_A_KIND)
                of_kind.append(window)
                self._kinds[window.kind] = of_kind
                self._newest.append(window)
                self._unseen += 1
                if len(self._kinds) > KINDS:
                    del self._kinds[next(iter(self._kinds))]

    def refit(self) -> LearnedCurves | None:
        """Return the curves in service; a new fit replaces them if it predicts the newest windows better."""
        if len(self._newest) < FEWEST_WINDOWS or not self._unseen:
            return self.in_service
        self._unseen = 0
        windows = [window for of_kind in self._kinds.values() for window in of_kind]
        curves = fit_steps(windows, self._newest, self._prior)
        present = self.in_service.curves if self.in_service else self._prior
        error = median_error(curves, self._newest)
        if curves.decode_step_s(1, 1) > 0 and error < median_error(present, self._newest) - LEAST_GAIN:
            self._versions += 1
            typical = typical_iteration(self._newest)
            self.in_service = LearnedCurves(curves, error, len(windows), self._versions, typical)
        return self.in_service


def typical_iteration(windows: Iterable[StepWindow]) -> tuple[float, float]:
    """Return the median rows of an iteration and median cached tokens of a row in these windows, both at least 1."""
    iterations = [one for one in windows if one.row_steps]
    rows = float(np.median([one.row_steps / one.steps for one in iterations] or [1.0]))
    tokens = float(np.median([one.row_reads / one.row_steps for one in iterations] or [1.0]))
    return max(1.0, rows), max(1.0, tokens)


def median_error(curves: ServingCurves, windows: Iterable[StepWindow]) -> float:
    """Return the median of |predicted - real| / real seconds; there must be at least one window."""
    seconds, sums = _arrays(list(windows))
    predicted = sums @ curves.coefficients
    return float(np.median(np.abs(predicted - seconds) / seconds))


def fit_steps(windows: Sequence[StepWindow], newest: Iterable[StepWindow], prior: ServingCurves) -> ServingCurves:
    """Fit robust curves to windows, of which older ones count less, and scale the curves to the level of the `newest`.

    Relative errors are weighted by Cauchy's function, so that windows in which something else ran count next to
    nothing. The curves are feasible (`learning.estimators.cost_curves`). Coefficients that the windows do not
    determine come from `prior`, scaled to the windows' level.
    """
    seconds, sums = _arrays(windows)
    at = np.array([window.at for window in windows])
    age_weights = 0.5 ** ((at.max() - at) / HALF_LIFE_S)
    prior_sums = _prior_sums()
    if any(window.steps and window.prefilled_tokens for window in windows):
        prior_sums = prior_sums[len(prior_sums) // 2 :]  # only iterations: servers never run a prefill alone
    prior_s = prior_sums @ _at_level_of(prior.coefficients, windows)
    known = prior_s > 0
    sums, seconds = np.concatenate([sums, prior_sums[known]]), np.concatenate([seconds, prior_s[known]])
    weights = np.concatenate([age_weights, np.full(known.sum(), PRIOR_WEIGHT)])
    trusted_at_first = np.concatenate([np.ones_like(age_weights), np.full(known.sum(), FIRST_PRIOR_WEIGHT)])
    coefficients = _robust_nnls(sums, seconds, weights, trusted_at_first)
    return ServingCurves.from_coefficients(_at_level_of(coefficients, list(newest)))


def _robust_nnls(sums: Sums, seconds: Floats, weights: Floats, robust: Floats) -> Floats:
    """Return the feasible coefficients that minimise squared relative errors with Cauchy's weights, by reweighting.

    `robust` are the Cauchy weights of the first iteration.
    """
    relative = sums / seconds[:, None] @ FEASIBLE
    norms = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    for _ in range(REFITS):
        root = np.sqrt(weights * robust)
        scaled, _ = nnls(relative * (root[:, None] / norms), root)
        errors = np.abs(relative @ (scaled / norms) - 1)
        scale = max(LEAST_SCALE, 1.4826 * float(np.median(errors)))
        robust = 1 / (1 + (errors / (CAUCHY * scale)) ** 2)
    return np.asarray(FEASIBLE @ (scaled / norms), np.float64)


def _at_level_of(coefficients: Floats, windows: Sequence[StepWindow]) -> Floats:
    """Return the coefficients times the median ratio of real to predicted seconds, prefills and iterations apart."""
    levelled = coefficients.copy()
    for part, of_part in (
        (slice(0, 4), [window for window in windows if not window.steps]),
        (slice(4, 8), [window for window in windows if window.steps]),
    ):
        if len(of_part) >= FEWEST_WINDOWS:
            seconds, sums = _arrays(of_part)
            predicted = sums @ coefficients
            if (predicted > 0).all():
                levelled[part] *= float(np.median(seconds / predicted))
    return levelled


def _prior_sums() -> Sums:
    """Return the sums of windows of a single prefill, then of a single iteration, for each size and length."""
    size = np.repeat(PRIOR_SIZES, len(PRIOR_LENGTHS)).astype(np.float64)
    length = np.tile(PRIOR_LENGTHS, len(PRIOR_SIZES)).astype(np.float64)
    return np.kron(np.eye(2), terms(size, length))


def _arrays(windows: Sequence[StepWindow]) -> tuple[Floats, Sums]:
    return np.array([window.seconds for window in windows]), np.array([window.sums for window in windows], np.float64)


def pooled_curves(learned: Mapping[str, LearnedCurves]) -> dict[str, ServingCurves]:
    """Return curves for each of these workers of one model, by name: a mix of the mean and the worker's own curves.

    A worker sees few kinds of steps within some seconds, and cannot separate an iteration's fixed cost from that of its
    cached tokens while both grow together. Two equal workers therefore learn different curves, and a policy that
    compares these would give one worker all long rows. Each worker gets the mean instead, unless its measurements
    differ by more than their error: its own curves get the weight max(0, 1 - s²/r²) (James and Stein, 1961). Here r is
    the logarithm of own over mean seconds of its typical iteration, and s is the relative error of its curves. In the
    mean, workers are weighted by the number of windows that they learned from.
    """
    if not learned:
        return {}
    windows = [one.windows for one in learned.values()]
    mean = np.average([one.curves.coefficients for one in learned.values()], axis=0, weights=windows)
    return {name: _drawn_to(ServingCurves.from_coefficients(mean), one) for name, one in learned.items()}


def _drawn_to(mean: ServingCurves, learned: LearnedCurves) -> ServingCurves:
    ratio = learned.curves.decode_step_s(*learned.typical) / mean.decode_step_s(*learned.typical)
    squared = math.log(ratio) ** 2
    own_share = max(0.0, 1 - learned.error**2 / squared) if squared else 0.0
    drawn = own_share * learned.curves.coefficients + (1 - own_share) * mean.coefficients
    return ServingCurves.from_coefficients(drawn)
