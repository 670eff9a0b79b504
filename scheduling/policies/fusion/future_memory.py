"""The peak of a continuous batch's memory over its predicted future (Past-Future's, for rows padded to the longest).

All rows grow by one token an iteration, each is padded to the longest (end-aligned keys and values), and a row's memory
is free once it ends. So memory is largest just before some row ends. With rows in order of remaining tokens
r1 ≥ r2 ≥ …, k rows are left when the k-th ends, and the longest of them has max(c1..ck) + rk tokens cached:

    peak = max over k of k · (max(c1..ck) + rk)
"""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats, Ints


@dataclass(frozen=True, slots=True)
class FutureMemory:
    """The rows of several workers, a worker a line, most tokens to come first; lines are filled with -inf."""

    remaining: Floats  # (workers, rows)
    longest: Floats  # most cached tokens of a row and those before it

    @classmethod
    def of(cls, cached: Floats, remaining: Floats) -> "FutureMemory":
        """Put the rows of each worker in order; `remaining` is -inf where there is no row."""
        order = np.argsort(-remaining, axis=1, kind="stable")
        worker = np.arange(len(order))[:, None]
        return cls(remaining[worker, order], np.maximum.accumulate(cached[worker, order], axis=1))

    def peaks_with(self, workers: Ints, cached: Floats, remaining: Floats) -> Floats:
        """The peak of a worker once one row more has joined it, for many pairs of worker and row."""
        theirs, longest = self.remaining[workers], self.longest[workers]
        cached, remaining = cached[:, None], remaining[:, None]
        count = np.arange(1, theirs.shape[1] + 1)
        outlived = theirs <= remaining  # rows during whose end the new one is still there
        ends = (count + outlived) * (np.where(outlived, np.maximum(longest, cached), longest) + theirs)
        beside = np.count_nonzero(~outlived, axis=1)  # rows that are left when the new one ends
        longest_beside = np.where(beside > 0, longest[np.arange(len(beside)), beside - 1], 0.0)
        own = (beside + 1) * (np.maximum(longest_beside, cached[:, 0]) + remaining[:, 0])
        return np.asarray(np.maximum(np.max(ends, axis=1, initial=0.0), own), np.float64)


def peak(cached: Floats, remaining: Floats) -> float:
    """The peak of one worker's rows."""
    order = np.argsort(-remaining, kind="stable")
    longest = np.maximum.accumulate(cached[order])
    return float(np.max(np.arange(1, len(order) + 1) * (longest + remaining[order])))
