"""The workers of `benchmarks.control_plane`: they decode when they are told to, and take no time for it."""

import time
from dataclasses import replace
from itertools import cycle
from typing import Literal

from scheduling.policy import Policy, RunningRow, Worker
from scheduling.request import Request
from scheduling.simulation.published_costs import CHATGLM_6B_V100

MACHINE, LIMIT = CHATGLM_6B_V100, 1024  # the machine and the longest prompt and answer of Magnus's experiments


class BenchmarkFleet:
    """Workers of one policy: busy or idle for static batches, with running rows for continuous ones."""

    def __init__(self, policy: Policy, workers: int) -> None:
        self._policy = policy
        self._rows: dict[str, list[RunningRow]] = {f"w{number:03}": [] for number in range(workers)}
        self._idle: set[str] = set()
        self._turns = cycle(self._rows)

    def workers(self) -> list[Worker]:
        """The workers as a planner describes them to a policy."""
        batches = self._policy.mode == "batch"
        return [
            Worker(name, MACHINE.memory, MACHINE.curves, tuple(rows), queued=int(batches and name not in self._idle))
            for name, rows in self._rows.items()
        ]

    def advance(self, kind: Literal["one", "all"]) -> None:
        """One worker becomes idle, or all do; the shortest row of one ends, or every row decodes a token."""
        if self._policy.mode != "continuous":
            self._idle = set(self._rows) if kind == "all" else {next(self._turns)}
        elif kind == "one":
            rows = self._rows[next(self._turns)]
            rows.remove(min(rows, key=lambda row: _total(row.request) - row.generated))
        else:
            for name, rows in self._rows.items():
                decoded = [replace(row, generated=row.generated + 1) for row in rows]
                self._rows[name] = [row for row in decoded if row.generated < _total(row.request)]

    def decide(self, now: float) -> tuple[float, int]:
        """Let the policy decide, and rows join at once; returns CPU seconds and the number of assigned requests."""
        workers = self.workers()
        began = time.thread_time()
        assignments = self._policy.assign(workers, now)
        seconds = time.thread_time() - began
        for assignment in assignments:
            rows = self._rows[assignment.worker]
            for row in [row for row in rows if row.request.id in assignment.preempts]:
                rows.remove(row)
                self._policy.add(replace(row.request, generated=row.generated), now)
            if assignment.joins:
                rows += [RunningRow(request, request.generated, now) for request in assignment.requests]
        return seconds, sum(len(assignment.requests) for assignment in assignments)


def _total(request: Request) -> int:
    """Tokens that it generates: half to twice as many as predicted."""
    return min(LIMIT, max(request.generated + 1, request.predicted * (50 + int(request.id) % 150) // 100))
