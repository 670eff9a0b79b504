"""A trained quantile forest as flat arrays: features in, equally likely values out. `forest_training` trains it."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from learning.estimators.length_distribution import Samples
from learning.features.compressed_features import FeatureMatrix

LEAF = -1  # scikit-learn's own mark of a leaf (TREE_LEAF)


@dataclass(frozen=True, slots=True)
class QuantileForest:
    """All trees in one array of nodes. Each tree is stored depth first, so the left child is the next node.

    Each leaf keeps `leaf_values`: evenly spaced quantiles of the training targets that fell into it. The
    quantile-forest library took 7 ms for one row through 100 trees; a whole prediction of `usin`, with reading the
    text, takes 1.3 ms with this one.
    """

    roots: npt.NDArray[np.int32]  # (trees,)
    feature: npt.NDArray[np.int16]  # (nodes,), LEAF in leaves
    threshold: npt.NDArray[np.float32]  # (nodes,), a row goes left if its feature is not above
    right: npt.NDArray[np.int32]  # (nodes,), the right child; in leaves the row of leaf_values
    leaf_values: npt.NDArray[np.float32]  # (leaves, values a leaf)

    def samples(self, features: FeatureMatrix, without: npt.NDArray[np.bool_] | None = None) -> Samples:
        """Equally likely targets of each row, ascending: the values of its leaf in every tree, (rows, trees · values).

        Values of the trees marked in `without` (rows, trees) are NaN, at the end of the row.
        """
        values = self.leaf_values[self.right[self._leaves(features)]]
        if without is not None:
            values[without] = np.nan
        pooled: Samples = values.reshape(len(features), -1)
        pooled.sort(axis=1)
        return pooled

    def _leaves(self, features: FeatureMatrix) -> npt.NDArray[np.int32]:
        """The leaf of each row in each tree, (rows, trees)."""
        rows = np.arange(len(features))[:, None]
        node = np.repeat(self.roots[None, :], len(features), axis=0)
        while True:
            feature = self.feature[node]
            inner = feature != LEAF
            if not inner.any():
                return node
            goes_left = features[rows, feature] <= self.threshold[node]
            node = np.where(inner, np.where(goes_left, node + 1, self.right[node]), node)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Its state, to be stored."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> "QuantileForest":
        """The stored forest."""
        return cls(**{f.name: arrays[f.name] for f in fields(cls)})
