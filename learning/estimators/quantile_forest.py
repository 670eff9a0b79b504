"""A quantile forest (Meinshausen 2006), trained by scikit-learn on one core and kept as flat arrays.

Flat arrays can be stored without pickle, and they predict one row several times faster than scikit-learn's trees.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestRegressor

from learning.features.length_predictor import Arrays, Samples
from learning.features.prompt_features import FeatureMatrix
from scheduling.costs import Floats

LEAF = -1  # scikit-learn's own mark of a leaf


@dataclass(frozen=True, slots=True)
class QuantileForest:
    """All trees in one array of nodes. Each tree is stored depth first, so the left child is the next node.

    A leaf's row of `leaf_values` holds evenly spaced quantiles of its training targets. The quantile-forest library
    took 7 ms for one row through 100 trees; a whole prediction of `usin`, with the text's features, takes 1.3 ms.
    """

    roots: npt.NDArray[np.int32]  # (trees,)
    feature: npt.NDArray[np.int16]  # (nodes,), LEAF in leaves
    threshold: npt.NDArray[np.float32]  # (nodes,), a row goes left if its feature is not above the threshold
    right: npt.NDArray[np.int32]  # (nodes,), the right child; in leaves the row of leaf_values
    leaf_values: npt.NDArray[np.float32]  # (leaves, values a leaf)

    def samples(self, features: FeatureMatrix, without: npt.NDArray[np.bool_] | None = None) -> Samples:
        """Return equally likely targets of each row, ascending: its leaf's values in all trees, (rows, trees · values).

        Trees that are marked in `without`, (rows, trees), give NaN, at the end of the row.
        """
        values = self.leaf_values[self.right[self._leaves(features)]]
        if without is not None:
            values[without] = np.nan
        pooled: Samples = values.reshape(len(features), -1)
        pooled.sort(axis=1)
        return pooled

    def _leaves(self, features: FeatureMatrix) -> npt.NDArray[np.int32]:
        """Return the leaf of each row in each tree, (rows, trees)."""
        rows = np.arange(len(features))[:, None]
        node = np.repeat(self.roots[None, :], len(features), axis=0)
        while True:
            feature = self.feature[node]
            inner = feature != LEAF
            if not inner.any():
                return node
            goes_left = features[rows, feature] <= self.threshold[node]
            node = np.where(inner, np.where(goes_left, node + 1, self.right[node]), node)

    def to_arrays(self) -> Arrays:
        """Return the state for `learning.store`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the stored forest."""
        return cls(**{f.name: arrays[f.name] for f in fields(cls)})


# The levels of the quantiles that a leaf keeps: 1/8, 3/8, 5/8, 7/8. They describe a leaf of four or five targets almost
# fully. More levels would make larger leaves more exact and the stored forest larger; not tuned.
LEAF_LEVELS = (np.arange(4) + 0.5) / 4


def train_forest(
    features: FeatureMatrix, targets: Floats, *, trees: int = 64, leaf: int = 4, share: float = 0.5
) -> tuple[QuantileForest, Samples]:
    """Train `trees` trees with at least `leaf` targets a leaf; each split chooses among a `share` of the features.

    Returns the forest and each training row's out-of-bag samples: the values of trees that were not trained on the row,
    and NaN for the other trees. The same data give the same forest.
    """
    trained = RandomForestRegressor(trees, min_samples_leaf=leaf, max_features=share, random_state=0, n_jobs=1)
    trained.fit(features, targets)
    roots, splits, thresholds, rights, leaf_values = [], [], [], [], []
    in_bag = np.zeros((len(features), trees), bool)
    nodes = leaves = 0
    for number, (tree, rows) in enumerate(
        zip((e.tree_ for e in trained.estimators_), trained.estimators_samples_, strict=True)
    ):
        in_bag[rows, number] = True
        is_leaf = tree.children_left == LEAF
        right = tree.children_right + nodes
        right[is_leaf] = leaves + np.arange(is_leaf.sum())
        roots.append(nodes)
        splits.append(np.where(is_leaf, LEAF, tree.feature))
        # rounded down to 32 bits, so that 32-bit features go to the same side as in scikit-learn
        nearest = tree.threshold.astype(np.float32)
        thresholds.append(np.where(nearest > tree.threshold, np.nextafter(nearest, np.float32("-inf")), nearest))
        rights.append(right)
        leaf_values.append(_quantiles_by_leaf(tree.apply(features[rows]), targets[rows]))
        nodes, leaves = nodes + tree.node_count, leaves + int(is_leaf.sum())
    forest = QuantileForest(
        np.array(roots, np.int32),
        np.concatenate(splits).astype(np.int16),
        np.concatenate(thresholds),
        np.concatenate(rights).astype(np.int32),
        np.concatenate(leaf_values).astype(np.float32),
    )
    return forest, forest.samples(features, without=in_bag)


def _quantiles_by_leaf(leaves: npt.NDArray[np.int64], targets: Floats) -> Floats:
    """Return the quantiles of each leaf's targets at LEAF_LEVELS, ordered by the leaves' numbers, (leaves, levels)."""
    order = np.lexsort((targets, leaves))
    ordered = targets[order]
    _, first, count = np.unique(leaves[order], return_index=True, return_counts=True)
    positions = LEAF_LEVELS * (count[:, None] - 1)
    below = first[:, None] + positions.astype(np.int64)
    above = first[:, None] + np.ceil(positions).astype(np.int64)
    return np.asarray(ordered[below] + (positions % 1) * (ordered[above] - ordered[below]))
