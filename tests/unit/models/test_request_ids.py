"""An id says when its request arrived; ids of release 1.0 say nothing."""

import uuid
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from models.request_ids import EPOCH, arrival_of, random_part

INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(INSTANTS)
def test_an_id_has_the_instant_of_arrival(at: datetime) -> None:
    assert arrival_of(f"resp_{(at - EPOCH) // timedelta(microseconds=1):014x}{random_part()}") == at


@given(st.uuids(version=4))
def test_a_random_id_has_no_instant(digits: uuid.UUID) -> None:
    assert arrival_of(f"resp_{digits.hex}") is None
