"""How long a batch will take: KNN over served batches (Magnus III-D) on top of SCLS's fitted curves (Eq. 1-4).

The nearest served batches correct the curves by how much longer or shorter than the curves they took; where nothing
similar was served all of them together do, a little. So it starts with a worker's profile and extrapolates as that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.neighbors import KDTree

from learning.estimators.cost_curves import ROUGH, fit_batches
from scheduling.costs import Floats, Ints, ServingCurves, ServingTime

NEIGHBOURS = 5
REACH = 0.35  # neighbours further away, in natural logarithms of the three numbers, count less and less
FEWEST_FOR_CURVES = 24
DOUBT = 10  # so many served batches count half against the profile


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """A served batch as the log has it; `at` is when it ended, seconds since the epoch."""

    worker: str
    model: str
    size: int
    length: int
    generation_length: int
    serving_s: float
    at: float = 0.0


class KnnServingTime:
    """Serving time of one worker and model; satisfies scheduling.costs.ServingTime, and is itself only by identity."""

    def __init__(self, curves: ServingCurves | None = None) -> None:
        self.curves = curves or ROUGH
        self._tree: KDTree | None = None
        self._served: npt.NDArray[np.float64] = np.zeros((0, 4))  # size, length, generation length, seconds
        self._ratios: npt.NDArray[np.float64] = np.zeros(0)
        self._offset = 0.0  # the median of the ratios, as far as there are enough of them to believe it

    def fit(self, batches: Sequence[ServedBatch], curves: ServingCurves | None = None) -> None:
        """Learn from these batches alone; `curves` is the worker's profile, else they are fitted to the batches."""
        served = [(b.size, b.length, b.generation_length, b.serving_s) for b in batches]
        if curves is None and len(served) >= FEWEST_FOR_CURVES:
            curves = fit_batches(served)
        self._learn(np.array(served, np.float64).reshape(-1, 4), curves or ROUGH)

    def serve_s(self, size: int, length: int, generation_length: int) -> float:
        """Seconds to serve such a batch."""
        return float(self.serve_many_s(np.array([size]), np.array([length]), np.array([generation_length]))[0])

    def serve_many_s(self, sizes: Ints, lengths: Ints, generation_lengths: Ints) -> Floats:
        """`serve_s` of many batches at once, element by element."""
        curve_s = np.maximum(self.curves.serve_many_s(sizes, lengths, generation_lengths), 1e-6)
        if self._tree is None:
            return curve_s
        places = np.log1p(np.stack([sizes, lengths, generation_lengths], axis=1))
        distances, nearest = self._tree.query(places, min(NEIGHBOURS, len(self)))
        weights = np.exp(-((distances / REACH) ** 2)) + 1e-12
        trust = weights.max(axis=1)  # 1 next to a served batch, 0 far from all of them
        corrections = (self._ratios[nearest] * weights).sum(axis=1) / weights.sum(axis=1)
        return np.asarray(curve_s * np.exp(self._offset + trust * (corrections - self._offset)), np.float64)

    def __len__(self) -> int:
        """Served batches that it knows."""
        return len(self._served)

    def _learn(self, served: npt.NDArray[np.float64], curves: ServingCurves) -> None:
        self.curves, self._served, self._tree = curves, served, None
        if len(served):
            self._tree = KDTree(np.log1p(served[:, :3]))
            curve_s = np.maximum(curves.serve_many_s(*served[:, :3].astype(np.int64).T), 1e-6)
            self._ratios = np.log(np.maximum(served[:, 3], 1e-6) / curve_s)
            self._offset = float(np.median(self._ratios)) * len(served) / (len(served) + DOUBT)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored."""
        return {"served": self._served, "curves": np.array([self.curves.prefill, self.curves.decode])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "KnnServingTime":
        """The stored estimator."""
        estimator = cls()
        prefill, decode = (tuple(row) for row in arrays["curves"].tolist())
        estimator._learn(arrays["served"], ServingCurves(prefill, decode))
        return estimator


class ServingTimes:
    """The estimators of all workers and models: what the trainer publishes and the planner loads."""

    def __init__(self) -> None:
        self.estimators: dict[tuple[str, str], KnnServingTime] = {}

    def fit(
        self, batches: Sequence[ServedBatch], curves: Mapping[tuple[str, str], ServingCurves] | None = None
    ) -> None:
        """Learn each worker's and model's serving times; `curves` are their profiles, by worker and model."""
        self.estimators = {}
        for key in sorted({(b.worker, b.model) for b in batches}):
            self.estimators[key] = KnnServingTime()
            self.estimators[key].fit([b for b in batches if (b.worker, b.model) == key], (curves or {}).get(key))

    def of(self, worker: str, model: str, curves: ServingCurves | None = None) -> ServingTime:
        """What is known of this worker: what it served, else its profile, else a rough default."""
        return self.estimators.get((worker, model)) or KnnServingTime(curves)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored."""
        arrays: dict[str, npt.NDArray[Any]] = {"keys": np.array(list(self.estimators), str).reshape(-1, 2)}
        for i, estimator in enumerate(self.estimators.values()):
            arrays |= {f"{i}.{name}": values for name, values in estimator.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "ServingTimes":
        """The stored estimators."""
        times = cls()
        for i, (worker, model) in enumerate(arrays["keys"].tolist()):
            own = {name.partition(".")[2]: a for name, a in arrays.items() if name.startswith(f"{i}.")}
            times.estimators[worker, model] = KnnServingTime.from_arrays(own)
        return times
