"""Which errors are worth learning from: the papers' thresholds for continuous learning (Magnus III-B, III-D)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """An error is worth learning from when it exceeds both an absolute and a relative threshold."""

    absolute: float
    relative: float

    def worth_learning(self, predicted: float, actual: float) -> bool:
        """Whether the error of this prediction exceeds both thresholds."""
        error = abs(predicted - actual)
        return error > self.absolute and error > self.relative * actual

    def scaled_to(self, actual: Sequence[float]) -> "ErrorRule":
        """The same rule for a service whose numbers are much smaller than the paper's.

        Where answers have 12 tokens and batches take 0.1 s, no error ever exceeds 10 tokens or 2 s. There the
        absolute threshold is twice the relative one at the mean. At the paper's scale nothing changes.
        """
        if not actual:
            return self
        return ErrorRule(min(self.absolute, 2 * self.relative * float(np.mean(actual))), self.relative)


LENGTH_RULE = ErrorRule(absolute=10, relative=0.10)  # tokens, Magnus III-B
SERVING_RULE = ErrorRule(absolute=2.0, relative=0.20)  # seconds, Magnus III-D
