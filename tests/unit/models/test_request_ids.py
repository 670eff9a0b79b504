"""An id says when its request arrived; ids of release 1.0 say nothing."""

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from models.request_ids import arrival_of, new_id

INSTANTS = st.datetimes(datetime(2026, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@given(INSTANTS, INSTANTS)
def test_an_id_has_the_instant_of_arrival_and_sorts_by_it(first: datetime, second: datetime) -> None:
    ids = [new_id(first), new_id(second)]
    assert [arrival_of(one) for one in ids] == [first, second]
    assert first == second or (ids[0] < ids[1]) is (first < second)


@given(st.uuids(version=4))
def test_a_random_id_has_no_instant(digits: uuid.UUID) -> None:
    assert arrival_of(f"resp_{digits.hex}") is None
