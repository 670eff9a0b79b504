"""The headers x-ratelimit-*, as OpenAI names and writes them: what a tenant may still send.

`requests` are those of the present window of its rate, `tokens` those of the prompts that it may have in the queue.
"""

import math

from flask import Response

from webapp.limits.backlog_limits import TokenStanding
from webapp.limits.rate_limits import RateStanding


def go_duration(seconds: float) -> str:
    """A duration as OpenAI's headers have it: 120ms, 6.5s, 2m0s, 1h0m3s. Rounded up to the millisecond."""
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
    """Add what is known."""
    for name, standing in (("requests", requests), ("tokens", tokens)):
        if standing is not None:
            response.headers[f"x-ratelimit-limit-{name}"] = str(standing.limit)
            response.headers[f"x-ratelimit-remaining-{name}"] = str(standing.remaining)
            response.headers[f"x-ratelimit-reset-{name}"] = go_duration(standing.reset_s)
