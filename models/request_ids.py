"""Ids of requests: `resp_` and 32 hex digits, as OpenAI's ids look.

The first 14 digits are the microseconds of `arrived_at` since 1970, so that a list can continue after a request that
was deleted meanwhile. The other 18 digits are random, except that the third of them is 0. It is never 0 in the ids of
release 1.0, which hold no time. `new_requests.INSERT` makes the ids.
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


def arrival_of(id: str) -> datetime | None:
    """Returns the arrival time that a request's id holds, or None if the id holds none."""
    found = TIMED_ID.fullmatch(id)
    return EPOCH + timedelta(microseconds=int(found[1], 16)) if found else None
