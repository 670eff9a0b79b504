"""Growing a quantile forest with the quantile-forest library, on one core, the same for the same data and seed."""

import numpy as np
import numpy.typing as npt
from quantile_forest import RandomForestQuantileRegressor

from learning.features import Matrix
from learning.forest import LEAF, QuantileForest

LEAF_VALUES = 4
EVENLY = (np.arange(LEAF_VALUES) + 0.5) / LEAF_VALUES


def grow(features: Matrix, targets: npt.NDArray[np.float64], trees: int = 64, leaf: int = 4) -> QuantileForest:
    """A forest of `trees` trees whose leaves hold at least `leaf` of the bootstrapped targets."""
    grown = RandomForestQuantileRegressor(
        trees, min_samples_leaf=leaf, max_features=0.5, max_samples_leaf=None, random_state=0, n_jobs=1
    ).fit(features, targets)
    return flatten(grown)


def flatten(grown: RandomForestQuantileRegressor) -> QuantileForest:
    """The library's forest as flat arrays."""
    targets = np.concatenate([[np.nan], np.asarray(grown.forest_.y_train)[0]])  # the library counts rows from 1
    members = np.asarray(grown.forest_.y_train_leaves)[:, :, 0, :]  # (trees, nodes, rows a leaf), padded with 0
    roots, features, thresholds, rights, leaf_values = [], [], [], [], []
    nodes = leaves = 0
    for tree, rows in zip((e.tree_ for e in grown.estimators_), members, strict=True):
        is_leaf = tree.children_left == LEAF
        right = tree.children_right + nodes
        right[is_leaf] = leaves + np.arange(is_leaf.sum())
        roots.append(nodes)
        features.append(np.where(is_leaf, LEAF, tree.feature))
        thresholds.append(_rounded_down(tree.threshold))
        rights.append(right)
        values = targets[rows[: tree.node_count][is_leaf]]
        leaf_values.append(np.nanquantile(values, EVENLY, axis=1).T)
        nodes, leaves = nodes + tree.node_count, leaves + int(is_leaf.sum())
    return QuantileForest(
        np.array(roots, np.int32),
        np.concatenate(features).astype(np.int16),
        np.concatenate(thresholds),
        np.concatenate(rights).astype(np.int32),
        np.concatenate(leaf_values).astype(np.float32),
    )


def _rounded_down(thresholds: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The greatest 32-bit values not above, so that the same 32-bit features go left as before."""
    nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32("-inf")), nearest)
