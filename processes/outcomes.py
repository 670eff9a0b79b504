"""Reads the log of outcomes for predictors: each outcome once, in the form that they learn from.

A row of the log has the instant at which the engine ended the request, but becomes visible when the result writer
commits it, perhaps after rows that ended later. So reads overlap, and skip ids that were read before.
"""

from collections.abc import Collection

from learning.features.length_predictor import Outcome, Prompt
from models.request_predictions import UnpredictedRequest
from models.training_log import FinishedRequest

# An outcome is read if it is committed at most this long after the end of its request. A worker that cannot write for
# MAGNUS_LEASE_S, 10 s, loses its lease and writes nothing, so any value above that works. A larger value only makes the
# query skip more ids: 3,000 at 100 requests a second.
OVERLAP_S = 30.0
# Reads come every second; if the last successful one is older than this, Postgres counts as having been away. While it
# is away no lease is lost, so workers keep their results and write them late. Any value from a few seconds to OVERLAP_S
# works.
OUTAGE_S = 5.0


class OutcomeCursor:
    """Selects the outcomes of the next read: new ones that ended later than `after`, seconds since the epoch."""

    def __init__(self, after: float = 0.0) -> None:
        self.after = after
        self._ended_at: dict[str, float] = {}  # when each request that was read ended, by id
        self._advanced_at: float | None = None
        self._overlap_all_until = 0.0

    @property
    def known_ids(self) -> Collection[str]:
        """The ids of the requests that ended later than `after` and have been read."""
        return self._ended_at.keys()

    def advance(self, read: Collection[FinishedRequest], now: float) -> None:
        """Advance after each read, at `now` monotonic seconds; after an outage `after` stays for OVERLAP_S."""
        if self._advanced_at is not None and now - self._advanced_at > OUTAGE_S:
            self._overlap_all_until = now + OVERLAP_S
        self._advanced_at = now
        self._ended_at |= {request.id: request.at for request in read}
        if self._ended_at and now >= self._overlap_all_until:
            self.after = max(self.after, max(self._ended_at.values()) - OVERLAP_S)
            self._ended_at = {request_id: at for request_id, at in self._ended_at.items() if at > self.after}


def prompt_of(one: FinishedRequest | UnpredictedRequest) -> Prompt:
    """Returns what a predictor reads of a request."""
    return Prompt(one.application, one.instructions, one.input, one.input_tokens, one.prompt_tokens, one.limit_tokens)


def outcome_of(request: FinishedRequest) -> Outcome:
    """Returns the request's prompt with the length of its answer and the length that was predicted."""
    return Outcome(
        prompt_of(request),
        generated_tokens=request.output_tokens,
        censored=request.cut_off,
        predicted_tokens=request.predicted_tokens,
        predicted_upper_tokens=request.predicted_upper_tokens,
        at=request.at,
    )
