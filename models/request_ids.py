"""Ids of requests: `resp_` and 32 hex digits, as OpenAI's ids look.

The first 14 digits are the microseconds of `arrived_at` since 1970. With them a list can continue behind a request that
was deleted meanwhile. `new_requests.INSERT` makes the same in SQL. The other 18 are random, but their third is 0:
the ids of release 1.0 are random and have another digit there.
"""

import re
import uuid
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RANDOM_DIGITS = 18
TIMED_ID = re.compile(r"resp_([0-9a-f]{14})[0-9a-f]{2}0[0-9a-f]{15}")


def random_part() -> str:
    """Returns the random digits of a request's id."""
    digits = uuid.uuid4().hex
    return f"{digits[:2]}0{digits[-15:]}"


def new_id(arrived_at: datetime) -> str:
    """Returns the id of a request that arrived at this instant."""
    return f"resp_{(arrived_at - EPOCH) // timedelta(microseconds=1):014x}{random_part()}"


def arrival_of(id: str) -> datetime | None:
    """Returns the instant in a request's id, or None if it has none."""
    found = TIMED_ID.fullmatch(id)
    return EPOCH + timedelta(microseconds=int(found[1], 16)) if found else None
