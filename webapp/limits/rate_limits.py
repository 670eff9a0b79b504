"""Limits the rate of each tenant's requests, in fixed windows of the database's clock, over all web processes together.

Each process counts in memory and adds its counts to the database twice a second, so that few calls cost an extra
statement. While a tenant has at most NEAR requests left, each call asks the database, so that the limit is never
exceeded, however many processes and calls at once there are. Flask-Limiter is not used, because it asks its storage at
each request, and a frozen broker must not delay requests.
"""

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from flask import Response

from models.tenants.tenant_limits import SharedCount
from protocol.client_errors import RateLimited
from webapp.limits.backlog_limits import TokenStanding

PERIODS_S = {"second": 1, "minute": 60, "hour": 3600}
RATE = re.compile(rf"(\d+)/({'|'.join(PERIODS_S)})")
SHARE_EVERY_S = 0.5  # a longer interval costs fewer statements and needs a larger NEAR; not tuned
# A tenant's call asks the database once this many requests are left: more than all web processes together receive from
# one tenant within SHARE_EVERY_S. Not tuned.
NEAR = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """The number of requests that a window of `period_s` seconds admits."""

    requests: int
    period_s: int

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Returns the rate that a text such as 1000/minute names; raises ValueError."""
        parsed = RATE.fullmatch(text)
        if parsed is None:
            raise ValueError(f"a rate limit looks like 1000/minute, with second, minute or hour, not {text!r}")
        return cls(int(parsed[1]), PERIODS_S[parsed[2]])

    def __str__(self) -> str:
        period = next(name for name, seconds in PERIODS_S.items() if seconds == self.period_s)
        return f"{self.requests}/{period}"


@dataclass(frozen=True, slots=True)
class RateStanding:
    """The requests left in a tenant's window, and the seconds until the next window begins."""

    limit: int
    remaining: int
    reset_s: float


@dataclass
class TenantWindow:
    """A tenant's requests in the current window: `known` in the database, `unshared` only in this process."""

    known: int = 0
    unshared: int = 0
    shared_at: float = -math.inf
    ends_at: float = -math.inf

    def standing(self, rate: Rate, now: float) -> RateStanding:
        """Returns the requests left in the window, and the seconds until the next window."""
        return RateStanding(
            rate.requests, max(0, rate.requests - self.known - self.unshared), max(0.0, self.ends_at - now)
        )


class RateLimit:
    """Counts each tenant's requests in fixed windows; a tenant without a rate of its own has the default, `rate`."""

    def __init__(self, rate: str, share: Callable[[str, int, int], SharedCount]) -> None:
        """`share(tenant, requests, period_s)` adds to the common count. Raises ValueError for a malformed rate."""
        self._default = Rate.parse(rate)
        self._share = share
        self._lock = threading.Lock()
        self._windows: dict[str, TenantWindow] = {}

    def count(self, tenant: str, now: float, own_per_minute: int | None = None) -> RateStanding:
        """Counts one request at `now`, monotonic seconds; returns the window's state, or raises RateLimited."""
        rate = self._default if own_per_minute is None else Rate(own_per_minute, 60)
        with self._lock:
            window = self._windows.setdefault(tenant, TenantWindow())
            if now >= window.ends_at:  # unshared counts belong to the previous window
                window.known = window.unshared = 0
                window.ends_at = now + rate.period_s
                window.shared_at = -math.inf
            left = rate.requests - window.known - window.unshared
            if left <= 0:
                raise self._limited(rate, window.standing(rate, now))
            window.unshared += 1
            if left > NEAR and now - window.shared_at < SHARE_EVERY_S:
                return window.standing(rate, now)
            requests, window.unshared = window.unshared, 0
            window.known += requests
        try:
            shared = self._share(tenant, requests, rate.period_s)
        except BaseException:  # this call is not served, but the calls counted before it were
            with self._lock:
                window.known -= requests
                window.unshared += requests - 1
            raise
        with self._lock:
            ends_at = now + shared.window_left_s
            same_window = abs(ends_at - window.ends_at) < rate.period_s / 2
            # the database's answers may come in another order: the highest count is the latest
            window.known = max(window.known, shared.requests) if same_window else shared.requests
            window.ends_at, window.shared_at = ends_at, now
            standing = window.standing(rate, now)
        if shared.requests > rate.requests:
            raise self._limited(rate, standing)
        return standing

    def _limited(self, rate: Rate, standing: RateStanding) -> RateLimited:
        return RateLimited(str(rate), max(1, math.ceil(standing.reset_s)), standing)


def go_duration(seconds: float) -> str:
    """Formats a duration as OpenAI's headers do: 120ms, 6.5s, 2m0s, 1h0m3s. Rounds up to the millisecond."""
    milliseconds = math.ceil(round(seconds * 1000, 3))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    shown = f"{rest / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown


def add_limit_headers(response: Response, requests: RateStanding | None, tokens: TokenStanding | None) -> None:
    """Adds the x-ratelimit headers for requests and for tokens; None leaves the headers of that kind out."""
    for name, standing in (("requests", requests), ("tokens", tokens)):
        if standing is not None:
            response.headers.add(f"x-ratelimit-limit-{name}", str(standing.limit))
            response.headers.add(f"x-ratelimit-remaining-{name}", str(standing.remaining))
            response.headers.add(f"x-ratelimit-reset-{name}", go_duration(standing.reset_s))
