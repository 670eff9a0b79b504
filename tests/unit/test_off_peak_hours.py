"""Off-peak hours over midnight and over the clock changes of their time zone."""

from datetime import datetime

import pytest

from off_peak_hours import OffPeakHours, off_peak_at

NIGHT = OffPeakHours.parse("22:00-06:00 Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("hours", "now", "begins"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-01-10T21:59:59+01:00", "2026-01-10T22:00+01:00"),
        ("22:00-06:00 Europe/Berlin", "2026-01-10T22:00+01:00", None),
        ("22:00-06:00 Europe/Berlin", "2026-01-11T00:00+01:00", None),
        ("22:00-06:00 Europe/Berlin", "2026-01-11T05:59:59+01:00", None),
        ("22:00-06:00 Europe/Berlin", "2026-01-11T06:00+01:00", "2026-01-11T22:00+01:00"),
        # the night in which clocks go forward has seven hours of off-peak, the one in which they go back nine
        ("22:00-06:00 Europe/Berlin", "2026-03-29T05:59+02:00", None),
        ("22:00-06:00 Europe/Berlin", "2026-03-29T06:00+02:00", "2026-03-29T22:00+02:00"),
        ("22:00-06:00 Europe/Berlin", "2026-10-24T21:59+02:00", "2026-10-24T22:00+02:00"),
        ("22:00-06:00 Europe/Berlin", "2026-10-25T05:59+01:00", None),
        ("22:00-06:00 Europe/Berlin", "2026-10-25T06:00+01:00", "2026-10-25T22:00+01:00"),
        # the day before a change, the next begin is after it
        ("02:30-05:00 Europe/Berlin", "2026-03-28T12:00+01:00", "2026-03-29T03:30+02:00"),
        ("02:30-05:00 Europe/Berlin", "2026-10-24T12:00+02:00", "2026-10-25T02:30+02:00"),
        ("02:30-05:00 Europe/Berlin", "2026-10-25T02:30+01:00", None),
        # several ranges
        ("12:00-13:00, 22:00-00:00 UTC", "2026-01-10T11:00+00:00", "2026-01-10T12:00+00:00"),
        ("12:00-13:00, 22:00-00:00 UTC", "2026-01-10T13:00+00:00", "2026-01-10T22:00+00:00"),
        ("12:00-13:00, 22:00-00:00 UTC", "2026-01-10T23:59+00:00", None),
        ("12:00-13:00, 22:00-00:00 UTC", "2026-01-11T00:00+00:00", "2026-01-11T12:00+00:00"),
    ],
)
def test_when_off_peak_work_is_served_next(hours: str, now: str, begins: str | None) -> None:
    expected = None if begins is None else at(begins)
    assert off_peak_at(OffPeakHours.parse(hours), at(now)) == expected


def test_hours_of_a_year_have_as_many_seconds_as_the_clock_of_their_zone_gives_them() -> None:
    begin, end = at("2026-01-01T12:00+01:00"), at("2027-01-01T12:00+01:00")
    minutes = sum(NIGHT.next_at(now) == now for now in range(int(begin), int(end), 60))
    assert minutes == 365 * 8 * 60  # an hour less in March, an hour more in October


@pytest.mark.parametrize(
    ("now", "hours_of_work", "ends"),
    [
        ("2026-01-10T12:00+01:00", 1, "2026-01-10T23:00+01:00"),
        ("2026-01-11T05:00+01:00", 1, "2026-01-11T06:00+01:00"),
        ("2026-01-11T05:00+01:00", 2, "2026-01-11T23:00+01:00"),
        ("2026-01-10T12:00+01:00", 17, "2026-01-12T23:00+01:00"),  # two nights, and an hour of the third
        ("2026-10-24T12:00+02:00", 9, "2026-10-25T06:00+01:00"),  # the night in which clocks go back
    ],
)
def test_off_peak_work_takes_as_many_nights_as_it_needs(now: str, hours_of_work: int, ends: str) -> None:
    assert NIGHT.after(at(now), hours_of_work * 3600) == at(ends)


@pytest.mark.parametrize("hours", ["02:00-03:00 Europe/Berlin", "02:30-03:00 Europe/Berlin"])
def test_hours_that_a_clock_change_skips_are_not_there_on_its_day(hours: str) -> None:
    short = OffPeakHours.parse(hours)
    begin, end = f"2026-03-30T{hours[:5]}+02:00", "2026-03-30T03:00+02:00"
    assert short.next_at(at("2026-03-28T12:00+01:00")) == at(begin)
    assert short.after(at("2026-03-28T12:00+01:00"), at(end) - at(begin)) == at(end)


def test_work_of_more_than_two_months_has_no_end() -> None:
    assert NIGHT.after(at("2026-01-10T12:00+01:00"), 70 * 8 * 3600) == float("inf")


def test_without_hours_nothing_waits() -> None:
    assert off_peak_at(None, 5.0) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "22:00-06:00",
        "22-06 UTC",
        "24:00-06:00 UTC",
        "22:00-22:00 UTC",
        "22:00-06:00 Mars/Base",
        ", UTC",
        "22:00-06:00 ../x",
    ],
)
def test_another_form_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"write|needs|no time zone"):
        OffPeakHours.parse(value)
