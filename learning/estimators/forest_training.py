"""Growing a quantile forest (Meinshausen 2006) with scikit-learn, on one core, the same for the same data and seed."""

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestRegressor

from learning.estimators.length_distribution import Samples
from learning.estimators.quantile_forest import LEAF, QuantileForest
from learning.features.compressed_features import Matrix

LEAF_VALUES = 4
EVENLY = (np.arange(LEAF_VALUES) + 0.5) / LEAF_VALUES

Numbers = npt.NDArray[np.float64]


def grow(
    features: Matrix, targets: Numbers, *, trees: int = 64, leaf: int = 4, share: float = 0.5
) -> tuple[QuantileForest, Samples]:
    """A forest of `trees` trees with at least `leaf` targets a leaf, each split seeing a `share` of the features.

    With it come the samples of each training row from the trees that did not see it, NaN from those that did.
    """
    grown = RandomForestRegressor(trees, min_samples_leaf=leaf, max_features=share, random_state=0, n_jobs=1)
    grown.fit(features, targets)
    roots, splits, thresholds, rights, leaf_values = [], [], [], [], []
    seen = np.zeros((len(features), trees), bool)
    nodes = leaves = 0
    for number, (tree, rows) in enumerate(
        zip((e.tree_ for e in grown.estimators_), grown.estimators_samples_, strict=True)
    ):
        seen[rows, number] = True
        is_leaf = tree.children_left == LEAF
        right = tree.children_right + nodes
        right[is_leaf] = leaves + np.arange(is_leaf.sum())
        roots.append(nodes)
        splits.append(np.where(is_leaf, LEAF, tree.feature))
        thresholds.append(_rounded_down(tree.threshold))
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
    return forest, forest.samples(features, without=seen)


def _quantiles_by_leaf(leaves: npt.NDArray[np.int64], targets: Numbers) -> Numbers:
    """LEAF_VALUES evenly spaced quantiles of the targets in each leaf, in the order of the leaves' numbers."""
    order = np.lexsort((targets, leaves))
    ordered = targets[order]
    _, first, many = np.unique(leaves[order], return_index=True, return_counts=True)
    places = EVENLY * (many[:, None] - 1)
    below = first[:, None] + places.astype(np.int64)
    above = first[:, None] + np.ceil(places).astype(np.int64)
    return np.asarray(ordered[below] + (places % 1) * (ordered[above] - ordered[below]))


def _rounded_down(thresholds: Numbers) -> npt.NDArray[np.float32]:
    """The greatest 32-bit values not above, so that the same 32-bit features go left as before."""
    nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32("-inf")), nearest)
