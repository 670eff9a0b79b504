"""Keeps the runs of a comparison in one file, so that an interrupted comparison goes on with the missing runs."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.harness import Json, Results, say


@dataclass(frozen=True, slots=True)
class RunTerms:
    """All options that decide what a run measures; `rate` is in arrivals a second."""

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
    """Keeps one record for each run, found by the run's terms, and writes the file after each run."""

    def __init__(self, results: Results, resume: bool, minutes: float | None) -> None:
        """With `resume` the file's runs are kept; no run is started once `minutes` have passed."""
        self.runs: list[Json] = [run for run in (results.earlier() or []) if "error" not in run] if resume else []
        self._results = results
        self._ends_at = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def run(self, terms: RunTerms, measure: Callable[[], Json]) -> Json | None:
        """Measure the run with these terms, keep and return its record; None if it has one or the time is up.

        A run that fails is recorded with its error, and `resume` measures it again.
        """
        own = asdict(terms)
        if time.monotonic() >= self._ends_at or any(own.items() <= known.items() for known in self.runs):
            return None
        load = round(os.getloadavg()[0], 2)  # the machine's load average of the last minute
        began = time.monotonic()
        try:
            record = measure()
        except Exception as error:  # a run that fails must not lose the others
            record = {"error": f"{type(error).__name__}: {error}"}
            say(f"{terms.policy} at {terms.rate:g}/s failed: {record['error']}")
        # The terms come last: the service's figures name a variant's policy, and the record must name the variant.
        record |= {"commit": self._results.origin["commit"], "load_before": load, **own}
        record["wall_s"] = round(time.monotonic() - began, 1)
        self.runs.append(record)
        self._results.write(self.runs)
        return record
