"""The rate limit of each API key, in fixed windows of the database's clock, over all web processes together.

Each process counts in its memory and adds its counts to the database's twice a second at most, so that a call seldom
costs a statement more. Between two such exchanges a process does not see what the others counted: a window may pass as
many requests more as they receive in SHARE_EVERY_S. Not Flask-Limiter: it asks its storage at every request, and a
broker that is frozen must not slow down what is accepted.
"""

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from models.rate_counts import SharedCount
from webapp.client_errors import RateLimited

PERIODS_S = {"second": 1, "minute": 60, "hour": 3600}
RATE = re.compile(rf"(\d+)/({'|'.join(PERIODS_S)})")
SHARE_EVERY_S = 0.5  # the rarer the cheaper, and the more a limit is exceeded; not tuned


@dataclass
class KeyCount:
    """A key's requests of the present window: those of all processes that are known, and our own not yet shared."""

    known: int = 0
    unshared: int = 0
    shared_at: float = -math.inf
    ends_at: float = -math.inf


class RateLimit:
    """A number of requests that each key may send in a fixed window, for example 60000/minute."""

    def __init__(self, rate: str, share: Callable[[int, int, int], SharedCount]) -> None:
        """`share(key_id, requests, period_s)` adds to the count of all processes; ValueError for an unreadable rate."""
        parsed = RATE.fullmatch(rate)
        if parsed is None:
            raise ValueError(f"a rate limit looks like 1000/minute, with second, minute or hour, not {rate!r}")
        self._rate = rate
        self._max_requests = int(parsed[1])
        self._period_s = PERIODS_S[parsed[2]]
        self._share = share
        self._lock = threading.Lock()
        self._counts: dict[int, KeyCount] = {}

    def count(self, key_id: int, now: float) -> None:
        """Count one request at `now`, seconds of a monotonic clock; raises RateLimited above the limit."""
        with self._lock:
            key = self._counts.setdefault(key_id, KeyCount())
            if now >= key.ends_at:  # what was not shared by now belongs to a window that is over
                key.known = key.unshared = 0
                key.ends_at = now + self._period_s
                key.shared_at = -math.inf
            if key.known + key.unshared >= self._max_requests:
                raise self._limited(key.ends_at - now)
            key.unshared += 1
            if now - key.shared_at < SHARE_EVERY_S:
                return
            requests, key.unshared, key.shared_at = key.unshared, 0, now
            key.known += requests
        shared = self._share(key_id, requests, self._period_s)
        with self._lock:
            key.known, key.ends_at = shared.requests, now + shared.window_left_s
        if shared.requests > self._max_requests:
            raise self._limited(shared.window_left_s)

    def _limited(self, left_s: float) -> RateLimited:
        return RateLimited(self._rate, max(1, math.ceil(left_s)))
