"""The runs of a comparison in one file: a comparison that was interrupted goes on with the runs that are missing."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.harness import Json, Results, say


@dataclass(frozen=True, slots=True)
class RunTerms:
    """All that decides what a run measures; lengths in tokens, and `rate` in arrivals a second."""

    policy: str
    rate: float
    repeat: int
    requests: int
    warm_requests: int
    warm_seconds: float
    estimator_s: float
    workload: str
    model: str
    workers: int
    kv_budget: str
    max_prompt_tokens: int
    max_output_tokens: int
    paced: str | None
    headroom: float
    predictor: str | None
    encoder: str | None
    seed: int


class RunRecords:
    """Keeps a record for each run, known by its terms, and writes the file after each."""

    def __init__(self, results: Results, resume: bool, minutes: float | None) -> None:
        """With `resume` the file's runs are kept; no run is started once `minutes` have passed."""
        self.runs: list[Json] = [run for run in (results.earlier() or []) if "error" not in run] if resume else []
        self._results, self._began = results, time.monotonic()
        self._ends_at = None if minutes is None else self._began + 60 * minutes

    @property
    def time_is_up(self) -> bool:
        """Whether no further run may start."""
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def run(self, terms: RunTerms, measure: Callable[[], Json]) -> Json | None:
        """Measure the run with these terms and keep its record; None if it exists or the time is up.

        A run that fails is recorded with its error, and `resume` measures it again.
        """
        own = asdict(terms)
        if self.time_is_up or any(_same(own, known) for known in self.runs):
            return None
        load = round(os.getloadavg()[0], 2)  # the machine's load average, in running processes
        began = time.monotonic()
        try:
            record = measure()
        except Exception as error:  # the other runs must not be lost with this one
            record = {"error": f"{type(error).__name__}: {error}"}
            say(f"{terms.policy} at {terms.rate:g}/s failed: {record['error']}")
        # the terms last: a service calls the policy of a variant by its own name
        record |= {"commit": self._results.origin["commit"], "load_before": load, **own}
        record["wall_s"] = round(time.monotonic() - began, 1)
        self.runs.append(record)
        self._results.write(self.runs)
        return record


def _same(terms: Json, record: Json) -> bool:
    return all(key in record and record[key] == value for key, value in terms.items())
