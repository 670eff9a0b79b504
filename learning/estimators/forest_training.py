"""Training a quantile forest (Meinshausen 2006) with scikit-learn, on one core; same data, same forest."""

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestRegressor

from learning.estimators.length_distribution import Samples
from learning.estimators.quantile_forest import LEAF, QuantileForest
from learning.features.compressed_features import FeatureMatrix
from scheduling.costs import Floats

# A leaf of four or five targets is kept almost whole by four quantiles. More values make larger leaves more exact and
# the stored forest larger; the number was not tuned.
LEAF_VALUES = 4
LEAF_LEVELS = (np.arange(LEAF_VALUES) + 0.5) / LEAF_VALUES  # the quantiles that a leaf keeps: 1/8, 3/8, 5/8, 7/8


def train_forest(
    features: FeatureMatrix, targets: Floats, *, trees: int = 64, leaf: int = 4, share: float = 0.5
) -> tuple[QuantileForest, Samples]:
    """A forest of `trees` trees with at least `leaf` targets a leaf, each split choosing among a `share` of features.

    The second result is each training row's out-of-bag sample: values of trees that were not trained on the row, NaN
    for those that were.
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
    return forest, forest.samples(features, without=in_bag)


def _quantiles_by_leaf(leaves: npt.NDArray[np.int64], targets: Floats) -> Floats:
    """Quantiles of each leaf's targets at LEAF_LEVELS, by the leaves' numbers, (leaves, LEAF_VALUES)."""
    order = np.lexsort((targets, leaves))
    ordered = targets[order]
    _, first, count = np.unique(leaves[order], return_index=True, return_counts=True)
    positions = LEAF_LEVELS * (count[:, None] - 1)
    below = first[:, None] + positions.astype(np.int64)
    above = first[:, None] + np.ceil(positions).astype(np.int64)
    return np.asarray(ordered[below] + (positions % 1) * (ordered[above] - ordered[below]))


def _rounded_down(thresholds: Floats) -> npt.NDArray[np.float32]:
    """The greatest 32-bit values that are not above, so that 32-bit features go to the same side as in scikit-learn."""
    nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32("-inf")), nearest)
