"""The rate limit of each API key, counted in this process's memory in fixed windows.

Not Flask-Limiter: its in-memory storage (limits 5.8) starts a thread for every request that it counts, and under load
that took longer than storing the request.
"""

import math
import re
import threading
from collections import Counter

PERIODS_S = {"second": 1, "minute": 60, "hour": 3600}
RATE = re.compile(rf"(\d+)/({'|'.join(PERIODS_S)})")


class RateLimited(Exception):
    """This key has sent all requests that its window allows; the next window begins in `retry_after_s`."""

    def __init__(self, rate: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"Rate limit of {rate} reached for this API key. Try again in {retry_after_s} s.")


class RateLimit:
    """A number of requests that each key may send in a fixed window, for example 60000/minute."""

    def __init__(self, rate: str) -> None:
        """Raises ValueError for a rate that is not written like 60000/minute."""
        parsed = RATE.fullmatch(rate)
        if parsed is None:
            raise ValueError(f"a rate limit looks like 1000/minute, with second, minute or hour, not {rate!r}")
        self._rate = rate
        self._max_requests = int(parsed[1])
        self._period_s = PERIODS_S[parsed[2]]
        self._lock = threading.Lock()
        self._window = -1
        self._counts: Counter[int] = Counter()

    def count(self, key_id: int, now: float) -> None:
        """Count one request at `now`, seconds; raises RateLimited above the limit."""
        window = int(now // self._period_s)
        with self._lock:
            if window != self._window:
                self._window = window
                self._counts.clear()
            self._counts[key_id] += 1
            allowed = self._counts[key_id] <= self._max_requests
        if not allowed:
            raise RateLimited(self._rate, max(1, math.ceil((window + 1) * self._period_s - now)))
