"""Kernel ridge regression in closed form, with the leave-one-out prediction of each row."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from scheduling.costs import Floats

PENALTY = 2.0  # λ: a larger one draws the weights of words that were seen a few times closer to 0; it was not tuned


def fit_ridge(products: Floats, targets: Floats) -> tuple[Floats, Floats]:
    """Dual weights (rows,) and leave-one-out predictions (rows,) from the products of all pairs of rows, (rows, rows).

    For fewer rows than dimensions. The dual weights sum to 0, so the weight of each column is its product with them.
    With G = (K + λI)⁻¹ over the products K of the centred rows, the prediction of row i by a ridge that was fitted
    without it is y_i - (G y)_i / G_ii.
    """
    means = products.mean(axis=0)
    centred = products - means - means[:, None] + means.mean()
    factor = cho_factor(centred + PENALTY * np.eye(len(products)), lower=True)
    inverse = cho_solve(factor, np.eye(len(products)))
    dual = inverse @ (targets - targets.mean())
    return dual, targets - dual / np.diag(inverse)
