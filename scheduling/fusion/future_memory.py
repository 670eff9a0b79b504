"""The peak of a continuous batch's memory over its predicted future (as Past-Future does for paged memory).

Every row is padded to the longest (end-aligned keys and values), all grow by one token an iteration, and a row's memory
is free once it ends. With rows in order of remaining tokens r1 ≥ r2 ≥ …, the memory is largest just before some row
ends: when the k-th does, the k longest-lived are left, and the longest of them has max(c1..ck) + rk cached tokens:

    peak = max over k of k · (max(c1..ck) + rk)
"""

from dataclasses import dataclass

import numpy as np

from scheduling.costs import Floats


@dataclass(frozen=True, slots=True)
class Future:
    """Rows of several workers, a worker a line, in order of remaining tokens, most first; lines end in -inf."""

    remaining: Floats  # (workers, rows)
    longest: Floats  # the most cached tokens of a row and those before it

    def peak_tokens(self) -> Floats:
        """The peak of each worker; zero where there is no row."""
        count = np.arange(1, self.remaining.shape[1] + 1)
        return np.max(count * (self.longest + self.remaining), axis=1, initial=0.0)

    def peak_with(self, worker: "np.ndarray[tuple[int], np.dtype[np.intp]]", cached: Floats, remaining: Floats) -> Floats:
        """The peak of a worker once one row more has joined, for many such pairs.

        Rows that outlive the new one make the peak they made before, or the new one's own end does; those that end
        before it share their end with it.
        """
        theirs, longest = self.remaining[worker], self.longest[worker]
        cached, remaining = cached[:, None], remaining[:, None]
        count = np.arange(1, theirs.shape[1] + 1)
        outlive = theirs > remaining
        ends = (count + ~outlive) * (np.where(outlive, longest, np.maximum(longest, cached)) + theirs)
        left = np.count_nonzero(outlive, axis=1)
        beside = np.take_along_axis(longest, np.maximum(left - 1, 0)[:, None], axis=1)
        beside = np.where(left[:, None] > 0, np.maximum(beside, cached), cached)
        own = (left[:, None] + 1) * (beside + remaining)
        return np.maximum(np.max(ends, axis=1, initial=0.0), own[:, 0])


def future_of(cached: Floats, remaining: Floats) -> Future:
    """Sort the rows of each worker; where there is none, `remaining` is -inf."""
    order = np.argsort(-remaining, axis=1, kind="stable")
    longest = np.maximum.accumulate(np.take_along_axis(cached, order, axis=1), axis=1)
    return Future(np.take_along_axis(remaining, order, axis=1), longest)
