"""One way to compare systems: they serve the same workload in turn, and each run gives figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

from benchmarks.harness import Json, Results

Work = TypeVar("Work")
System = TypeVar("System")


@dataclass(frozen=True)
class Experiment(Generic[Work, System]):
    """The parts of a workload and the systems, by name; `figures` lets a system serve a part once and measures it."""

    workload: Mapping[str, Work]
    systems: Mapping[str, System]
    figures: Callable[[System, Work], Json]

    def runs(self, repeats: int = 1) -> Iterator[Json]:
        """Yield the figures of each run: all systems serve once before any serves again, every other time backwards."""
        for repeat in range(repeats):
            for part, work in self.workload.items():
                for name in list(self.systems)[:: -1 if repeat % 2 else 1]:
                    run = self.figures(self.systems[name], work)
                    yield {"workload": part, "system": name, "repeat": repeat, **run}

    def rows(self, results: Results, repeats: int = 1) -> list[Json]:
        """Return the figures of all runs, which are written after each one."""
        rows: list[Json] = []
        for run in self.runs(repeats):
            rows.append(run)
            results.write(rows)
        return rows


def of_system(rows: Sequence[Json], system: str, figure: str) -> list[float]:
    """Return a figure of one system's runs, in the order of the repeats."""
    return [row[figure] for row in rows if row["system"] == system]


def times(rows: Sequence[Json], system: str, peer: str) -> float | None:
    """Return the median, over the repeats, of the peer's seconds divided by the system's; None without this peer."""
    pairs = zip(of_system(rows, peer, "seconds"), of_system(rows, system, "seconds"), strict=False)
    return median(ratios) if (ratios := [theirs / own for theirs, own in pairs]) else None


def medians(rows: Sequence[Json], keys: Sequence[str] = ("workload", "system")) -> list[Json]:
    """Return one row for all runs that have the same values of these keys, with the median of each number of a run."""
    found = []
    for kind in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        alike = [row for row in rows if tuple(row[key] for key in keys) == kind]
        found.append(dict(zip(keys, kind, strict=True)) | {name: _median(alike, name) for name in _names(alike, keys)})
    return found


def _names(rows: Sequence[Json], keys: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name not in keys]


def _median(rows: Sequence[Json], name: str) -> object:
    values = [row[name] for row in rows if row.get(name) is not None]
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return median(values)
    if values and all(isinstance(value, dict) for value in values):
        return {inner: _median(values, inner) for inner in _names(values, ())}
    return values[0] if values else None
