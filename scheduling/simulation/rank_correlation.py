"""How well predictions ranked the answers lately: what a live planner reads from its log, and policies are told."""

from collections import deque

import numpy as np

RECENT = 256  # answers that are judged
EVERY = 64  # answers between two judgements


class RankCorrelation:
    """The latest predicted and true generation lengths."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._seen = 0

    def tau(self, predicted: int, generated: int) -> float | None:
        """Kendall's tau-b of the recent answers with this one, when it is time to judge; 0 where it is undefined."""
        self._recent.append((predicted, generated))
        self._seen += 1
        return kendall_tau(*np.array(self._recent).T) if self._seen % EVERY == 0 else None


def kendall_tau(one: np.ndarray, other: np.ndarray) -> float:
    """Tau-b: pairs in the same order less those in the opposite one, over the pairs without ties of either side."""
    upper = np.triu_indices(len(one), k=1)
    signs, others = (np.sign(values[:, None] - values)[upper] for values in (one, other))
    untied = float(np.sqrt(np.count_nonzero(signs) * np.count_nonzero(others)))
    return float(signs @ others) / untied if untied else 0.0
