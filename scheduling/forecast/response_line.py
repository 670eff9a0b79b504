"""Seconds until an answer as a line over its predicted tokens, for requests that come now."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ResponseLine:
    """seconds = base_s + token_s · tokens."""

    base_s: float
    token_s: float

    def at(self, tokens: float) -> float:
        """Seconds until an answer of so many tokens, never below 0."""
        return max(0.0, self.base_s + self.token_s * tokens)


def fit_line(points: Sequence[tuple[float, float]]) -> ResponseLine:
    """Least squares of (tokens, seconds), at least one point; a line that neither falls nor begins below 0."""
    tokens, seconds = np.array(points, np.float64).T
    spread = float(tokens.var())
    slope = float(((tokens - tokens.mean()) * (seconds - seconds.mean())).mean()) / spread if spread > 0 else 0.0
    slope = min(max(0.0, slope), float(seconds.mean() / tokens.mean()))
    return ResponseLine(float(seconds.mean() - slope * tokens.mean()), slope)
