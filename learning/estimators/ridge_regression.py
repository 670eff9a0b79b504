"""Ridge regression on sparse text vectors, in closed form, with the leave-one-out prediction of each row."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from scheduling.costs import Floats

PENALTY = 2.0  # λ: a larger one draws the weights of words that were seen a few times closer to 0; it was not tuned


def fit_ridge(texts: csr_array, targets: Floats) -> tuple[Floats, float, Floats]:
    """Weights (dimension,), intercept and each row's leave-one-out prediction (rows,).

    Solved in the dual form, for fewer rows than dimensions. With G = (K + λI)⁻¹ over the products K of the centred
    rows, the prediction of row i by a ridge that was fitted without it is y_i - (G y)_i / G_ii.
    """
    rows = texts.toarray().astype(np.float32)
    mean_row = rows.mean(axis=0)
    rows -= mean_row
    mean_target = float(targets.mean())
    factor = cho_factor((rows @ rows.T).astype(np.float64) + PENALTY * np.eye(len(rows)), lower=True)
    inverse = cho_solve(factor, np.eye(len(rows)))
    dual = inverse @ (targets - mean_target)
    left_out = targets - dual / np.diag(inverse)
    weights = rows.T.astype(np.float64) @ dual
    return weights, float(mean_target - mean_row @ weights), left_out
