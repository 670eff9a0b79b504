"""Ridge regression on sparse text vectors, solved once, with what it would say of each row had it not seen it."""

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

Numbers = npt.NDArray[np.float64]

PENALTY = 2.0


def fit_ridge(texts: csr_array, targets: Numbers) -> tuple[Numbers, float, Numbers]:
    """Weights (dimension,), offset and each row's prediction when left out (rows,).

    In its dual form, for fewer rows than dimensions: with G = (K + λI)⁻¹ over the centred rows' products K, row i is
    predicted without itself as y_i - (G y)_i / G_ii.
    """
    rows = texts.toarray().astype(np.float32)
    centre = rows.mean(axis=0)
    rows -= centre
    mean = float(targets.mean())
    factor = cho_factor((rows @ rows.T).astype(np.float64) + PENALTY * np.eye(len(rows)), lower=True)
    inverse = cho_solve(factor, np.eye(len(rows)))
    dual = inverse @ (targets - mean)
    left_out = targets - dual / np.diag(inverse)
    weights = rows.T.astype(np.float64) @ dual
    return weights, float(mean - centre @ weights), left_out
