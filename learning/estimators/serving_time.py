"""Estimates serving times: KNN over served batches (Magnus III-D) on top of SCLS's fitted curves (Eq. 1-4).

The curves are corrected by the ratio of real to expected seconds of the nearest served batches. Far from all served
batches they are corrected by the median ratio of all batches, more strongly the more batches there are. So an estimator
begins with the worker's profile, and extrapolates like the profile.

A plain estimator is the paper's: the mean of the nearest batches' seconds, each axis divided by its standard deviation.
Lengths reach a thousand tokens and sizes some tens of rows, so raw distances would tell nothing of the size. Before any
batch it follows the curves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KDTree

from learning.estimators.cost_curves import DEFAULT_CURVES, fit_curves_to_batches
from scheduling.costs import Floats, Ints, ServedBatch, ServingCurves, ServingTime

NEIGHBOURS = 5  # more neighbours reduce noise but are less similar; not tuned, the paper does not give its K
# Width of the Gaussian weights over distances of logarithms: a batch 1.4 times as large weighs 1/e; not tuned.
BANDWIDTH = 0.35
FEWEST_FOR_CURVES = 24  # curves are fitted to at least this many batches: three for each of the eight coefficients
PRIOR_BATCHES = 10  # with this many batches, half of their median log(served / curve seconds) is applied; not tuned


class KnnServingTime:
    """The `ServingTime` of one worker and model; objects are compared and hashed by identity."""

    def __init__(self, curves: ServingCurves | None = None, plain: bool = False) -> None:
        self.plain = plain
        self.curves = curves or DEFAULT_CURVES
        self._tree: KDTree | None = None
        self._axes = np.ones(3)  # the standard deviations of size, length and generation length, for a plain estimator
        self._served: npt.NDArray[np.float64] = np.zeros((0, 4))  # size, length, generation length, seconds
        self._log_ratios: npt.NDArray[np.float64] = np.zeros(0)
        self._common_log_ratio = 0.0  # the median log ratio, shrunk to 0 while batches are few

    def fit(self, batches: Sequence[ServedBatch], curves: ServingCurves | None = None) -> None:
        """Learn from these batches alone; `curves` is the worker's profile, without which curves are fitted to them."""
        served = [(b.size, b.length, b.generation_length, b.serving_s) for b in batches]
        if curves is None and len(served) >= FEWEST_FOR_CURVES:
            curves = fit_curves_to_batches(served)
        self._learn(np.array(served, np.float64).reshape(-1, 4), curves or DEFAULT_CURVES)

    def serve_s(self, size: int, length: int, generation_length: int) -> float:
        """Return the seconds to serve a batch of this shape."""
        return float(self.serve_many_s(np.array([size]), np.array([length]), np.array([generation_length]))[0])

    def serve_many_s(self, sizes: Ints, lengths: Ints, generation_lengths: Ints) -> Floats:
        """Return `serve_s` of many batches, element by element."""
        curve_s = np.maximum(self.curves.serve_many_s(sizes, lengths, generation_lengths), 1e-6)
        if self._tree is None:
            return curve_s
        points = self._points(np.stack([sizes, lengths, generation_lengths], axis=1))
        distances, nearest = self._tree.query(points, min(NEIGHBOURS, len(self)))
        if self.plain:
            return np.asarray(self._served[nearest, 3].mean(axis=1), np.float64)
        weights = np.exp(-((distances / BANDWIDTH) ** 2)) + 1e-12
        nearness = weights.max(axis=1)  # 1 next to a served batch, 0 far from all of them
        corrections = (self._log_ratios[nearest] * weights).sum(axis=1) / weights.sum(axis=1)
        return np.asarray(
            curve_s * np.exp(self._common_log_ratio + nearness * (corrections - self._common_log_ratio)), np.float64
        )

    def __len__(self) -> int:
        """Return the number of batches that the estimator was fitted to."""
        return len(self._served)

    def _learn(self, served: npt.NDArray[np.float64], curves: ServingCurves) -> None:
        self.curves, self._served, self._tree = curves, served, None
        if len(served):
            spread = served[:, :3].std(axis=0)
            self._axes = np.where(spread > 0, spread, 1.0)
            self._tree = KDTree(self._points(served[:, :3]))
            curve_s = np.maximum(curves.serve_many_s(*served[:, :3].astype(np.int64).T), 1e-6)
            self._log_ratios = np.log(np.maximum(served[:, 3], 1e-6) / curve_s)
            self._common_log_ratio = float(np.median(self._log_ratios)) * len(served) / (len(served) + PRIOR_BATCHES)

    def _points(self, batches: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return sizes, lengths and generation lengths, (batches, 3), as distances compare them."""
        return np.asarray(batches / self._axes if self.plain else np.log1p(batches), np.float64)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as arrays, for storage."""
        curves = np.array([self.curves.prefill, self.curves.decode])
        return {"served": self._served, "curves": curves, "plain": np.array(self.plain)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "KnnServingTime":
        """Return the estimator with this state."""
        estimator = cls(plain=bool(arrays.get("plain", False)))
        prefill, decode = (tuple(row) for row in arrays["curves"].tolist())
        estimator._learn(arrays["served"], ServingCurves(prefill, decode))
        return estimator


class ServingTimes:
    """The estimators of all workers and models: what the trainer publishes and the planner loads."""

    def __init__(self, plain: bool = False) -> None:
        self._plain = plain
        self.estimators: dict[tuple[str, str], KnnServingTime] = {}

    def fit(
        self, batches: Sequence[ServedBatch], curves: Mapping[tuple[str, str], ServingCurves] | None = None
    ) -> None:
        """Learn the serving times of each worker and model; `curves` are their profiles, by worker and model."""
        self.estimators = {}
        for key in sorted({(b.worker, b.model) for b in batches}):
            self.estimators[key] = KnnServingTime(plain=self._plain)
            self.estimators[key].fit([b for b in batches if (b.worker, b.model) == key], (curves or {}).get(key))

    def serving_time_for(self, worker: str, model: str, curves: ServingCurves | None = None) -> ServingTime:
        """Return the worker's estimator; without one, an estimator of its profile `curves`, or of `DEFAULT_CURVES`."""
        return self.estimators.get((worker, model)) or KnnServingTime(curves)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state as arrays, for storage."""
        arrays: dict[str, npt.NDArray[Any]] = {"keys": np.array(list(self.estimators), str).reshape(-1, 2)}
        for i, estimator in enumerate(self.estimators.values()):
            arrays |= {f"{i}.{name}": values for name, values in estimator.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "ServingTimes":
        """Return the estimators with this state."""
        times = cls()
        for i, (worker, model) in enumerate(arrays["keys"].tolist()):
            own = {name.partition(".")[2]: a for name, a in arrays.items() if name.startswith(f"{i}.")}
            times.estimators[worker, model] = KnnServingTime.from_arrays(own)
        return times
