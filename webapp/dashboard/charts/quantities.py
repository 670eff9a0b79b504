"""Quantities as people read them: durations, memory, numbers, instants. Pages use these functions as filters."""

from datetime import datetime


def duration(seconds: float | None) -> str:
    """Writes seconds in the form 12 ms, 3.4 s, 2 m 05 s, 3 h 20 m or 2 d 4 h; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def memory(size: float) -> str:
    """Writes bytes in the form 1.5 GiB, 64 MiB or 12 KiB."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g} {unit}"
    return f"{size:.0f} B"


def count(value: float | None, digits: int = 0) -> str:
    """Writes a number in the form 12,345; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def instant(at: datetime | None) -> str:
    """Writes an instant in the form 2026-11-20 21:10:05 UTC; a dash for None."""
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def plural(number: int, noun: str) -> str:
    """Writes a number with its noun in the form 1 batch or 2 batches."""
    ending = "" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number:,} {noun}{ending}"
