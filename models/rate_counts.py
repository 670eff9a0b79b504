"""How many requests each API key sent in the present window, over all web processes: what a rate limit compares."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

ADD = text("""
    insert into rate_counts as old (key_id, window_start, requests)
    values (:key_id, date_bin(make_interval(secs => :period_s), clock_timestamp(), to_timestamp(0)), :requests)
    on conflict (key_id) do update set window_start = excluded.window_start,
        requests = excluded.requests
            + case when old.window_start = excluded.window_start then old.requests else 0 end
    returning requests, extract(epoch from
        window_start + make_interval(secs => :period_s) - clock_timestamp())::float8 as window_left_s
""")


@dataclass(frozen=True, slots=True)
class SharedCount:
    """The requests of a key in the present window, and how long the window still lasts."""

    requests: int
    window_left_s: float


def add(session: Session, key_id: int, requests: int, period_s: int) -> SharedCount:
    """Add requests to a key's count; windows of `period_s` follow each other from 1970 on."""
    row = session.connection().execute(ADD, {"key_id": key_id, "requests": requests, "period_s": period_s}).one()
    session.commit()
    return SharedCount(row.requests, max(0.0, row.window_left_s))
