"""The flat forest against the libraries that it replaces."""

import numpy as np
from quantile_forest import RandomForestQuantileRegressor
from sklearn.ensemble import RandomForestRegressor

from learning.estimators.quantile_forest import train_forest


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 3)).astype(np.float32)
    return features, 50 * features[:, 0] + 10 * rng.normal(size=n) + 200


def test_every_row_falls_into_the_leaf_that_scikit_learn_says() -> None:
    features, targets = data(400)
    forest, _ = train_forest(features, targets, trees=8, leaf=3, share=0.5)
    trained = RandomForestRegressor(8, min_samples_leaf=3, max_features=0.5, random_state=0, n_jobs=1)
    trained.fit(features, targets)
    asked = np.concatenate([features, data(200, seed=1)[0]])
    theirs = trained.apply(asked)
    ours = forest._leaves(asked) - forest.roots
    assert np.array_equal(ours, theirs)


def test_quantiles_agree_with_the_quantile_forest_library() -> None:
    features, targets = data(1500)
    forest, _ = train_forest(features, targets, trees=64, leaf=10, share=1.0)
    library = RandomForestQuantileRegressor(
        64, min_samples_leaf=10, max_features=1.0, max_samples_leaf=None, random_state=0, n_jobs=1
    ).fit(features, targets)
    asked = data(200, seed=2)[0]
    ours = np.quantile(forest.samples(asked), [0.5, 0.9], axis=1).T
    theirs = library.predict(asked, quantiles=[0.5, 0.9])
    assert np.abs(ours - theirs).mean() < 2.5  # targets spread over 300


def test_left_out_samples_come_only_from_trees_that_did_not_see_the_row() -> None:
    features, targets = data(60)
    targets[0] = 10_000.0
    forest, left_out = train_forest(features, targets, trees=32, leaf=1)
    assert forest.samples(features[:1]).max() == 10_000.0
    assert np.nanmax(left_out[0]) < 1_000
    assert 0 < np.isnan(left_out[0]).mean() < 1
