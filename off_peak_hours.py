"""The service's off-peak hours: ranges of the clock in one time zone, which follow its clock changes."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Self
from zoneinfo import ZoneInfo

LONGEST_S = 60 * 86_400.0  # nobody waits longer for off-peak work; any value above the longest window works
FORM = re.compile(r"([\d:,\s-]+?)\s+(\S+)")
RANGE = re.compile(r"(?P<begin>([01]\d|2[0-3]):[0-5]\d)-(?P<end>([01]\d|2[0-3]):[0-5]\d)")


@dataclass(frozen=True, slots=True)
class OffPeakHours:
    """Ranges of local times; a range whose end is not after its begin ends on the next day."""

    zone: ZoneInfo
    ranges: tuple[tuple[time, time], ...]

    @classmethod
    def parse(cls, value: str) -> Self:
        """Returns the hours of a text such as `22:00-06:00,12:00-13:00 Europe/Berlin`; raises ValueError."""
        parts = FORM.fullmatch(value.strip())
        found = [RANGE.fullmatch(one.strip()) for one in parts[1].split(",")] if parts else []
        if parts is None or None in found:
            raise ValueError("write ranges and their time zone, for example 22:00-06:00,12:00-13:00 Europe/Berlin")
        ranges = tuple(
            (time.fromisoformat(one["begin"]), time.fromisoformat(one["end"])) for one in found if one is not None
        )
        if any(begin == end for begin, end in ranges):
            raise ValueError("a range needs different times of its begin and its end")
        try:
            return cls(ZoneInfo(parts[2]), ranges)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"there is no time zone {parts[2]}: write one such as Europe/Berlin or UTC") from error

    def next_at(self, now: float) -> float:
        """Returns the Unix time from which off-peak work is served: `now` within the hours, else their next begin."""
        return min(max(begin, now) for begin, end in self._periods(now) if now < end)

    def after(self, now: float, seconds: float) -> float:
        """Returns the Unix time at which these seconds within the hours have passed; infinity if that takes months."""
        at, latest = self.next_at(now), now + LONGEST_S
        while at < latest:
            ends_at = max(end for begin, end in self._periods(at) if begin <= at < end)
            if at + seconds <= ends_at:
                return at + seconds
            seconds -= ends_at - at
            at = self.next_at(ends_at)
        return math.inf

    def _periods(self, now: float) -> Iterator[tuple[float, float]]:
        """Yields the periods of the days around `now`, as Unix times.

        A time that a clock change skips lies an hour later, and one that it repeats is the first of the two. A range
        that such a change skips has no period on that day.
        """
        today = datetime.fromtimestamp(now, self.zone).date()
        for day in (today + timedelta(days=days) for days in range(-1, 3)):
            for begin, end in self.ranges:
                last = day if end > begin else day + timedelta(days=1)
                first_at, last_at = (
                    datetime.combine(on, at, self.zone).timestamp() for on, at in ((day, begin), (last, end))
                )
                if first_at < last_at:
                    yield first_at, last_at


def off_peak_at(hours: OffPeakHours | None, now: float) -> float | None:
    """Returns when the next off-peak hours begin; None within them, and without a setting, so that nothing waits."""
    next_at = now if hours is None else hours.next_at(now)
    return None if next_at <= now else next_at
