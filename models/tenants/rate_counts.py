"""How many requests each tenant sent in the present window, over all web processes: what a rate limit compares."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.sql import text

ADD = text("""
    insert into rate_counts as old (key_id, window_start, requests)
    values ((select min(id) from api_keys where tenant = :tenant),
        date_bin(make_interval(secs => :period_s), clock_timestamp(), to_timestamp(0)), :requests)
    on conflict (key_id) do update set window_start = excluded.window_start,
        requests = excluded.requests
            + case when old.window_start = excluded.window_start then old.requests else 0 end
    returning requests, extract(epoch from
        window_start + make_interval(secs => :period_s) - clock_timestamp())::float8 as window_left_s
""")


@dataclass(frozen=True, slots=True)
class SharedCount:
    """The requests of a tenant in the present window, and how long the window still lasts."""

    requests: int
    window_left_s: float


def add(session: Session, tenant: str, requests: int, period_s: int) -> SharedCount:
    """Add requests to the count of a tenant that has a key; windows of `period_s` follow each other from 1970 on."""
    row = session.connection().execute(ADD, {"tenant": tenant, "requests": requests, "period_s": period_s}).one()
    session.commit()
    return SharedCount(row.requests, max(0.0, row.window_left_s))
