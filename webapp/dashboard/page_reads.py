"""Caches figures that all operators see, so that many open pages cost as many reads as one."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from models import model_versions
from models.connections.session import in_session
from models.connections.sql import database_clock
from models.operations import application_figures, fleet_use, operator_jobs, operator_overview, service_history
from models.operations.application_figures import scores_by_application
from models.operations.application_words import first_words
from models.operations.bulk_figures import bulk_figures
from models.operations.fleet_use import FleetState
from models.operations.operator_jobs import QueuedJob
from models.operations.operator_overview import RequestCounts
from models.planner_state import planner_inputs
from models.planning.queue_snapshot import QueueSnapshot, read_queue_snapshot
from processes.ttl_cache import TtlCache
from webapp.dashboard.charts.page_charts import RANGES, ChartRange, prediction_charts, service_charts
from webapp.dashboard.charts.time_charts import Chart, Slot, time_slots
from webapp.dashboard.overview_figures import read_overview

FIGURES_TTL_S = 4.0  # each open page is fetched every 5 s
# A result is also kept for 100 times the seconds of its read, at most 15 s: any number of open pages then takes at most
# a percent of a core, as long as a read takes no more than 150 ms.
SPACING = 100.0
BACK_S = 300.0  # time span of workers' strips: batches of some seconds stay visible. Not tuned.
WORDS_KEPT_S = 60.0  # words may be shown for this long after their texts were deleted; not tuned
CHARTS_TTL_S = {"15m": 4.0, "6h": 10.0, "7d": 15.0}  # seconds by range, well below the step of its charts

OPEN_JOBS = 64  # bulk jobs whose pages may be open at once without being read anew each time; not tuned

Read = TypeVar("Read")


class PageReads:
    """The caches of one web process."""

    def __init__(self, sessions: sessionmaker[Session], worker_alive_s: float) -> None:
        self._sessions = sessions
        self.overview = self._cached(partial(read_overview, worker_alive_s=worker_alive_s), FIGURES_TTL_S)
        self.charts = self._charts(service_charts)
        self.clock = self._cached(lambda session: database_clock(session.connection()), FIGURES_TTL_S)
        self.waiting = self._cached(_waiting, FIGURES_TTL_S)
        self.paused_since = self._cached(operator_overview.paused_since, FIGURES_TTL_S)
        self.fleet = self._cached(_fleet, FIGURES_TTL_S)
        self.predicted = self._cached(application_figures.newest_answers, FIGURES_TTL_S)
        self.scores = TtlCache(lambda: scores_by_application(self.predicted.get()), FIGURES_TTL_S, SPACING)
        self.prediction_charts = self._charts(prediction_charts)
        self.versions = self._cached(model_versions.list_all, FIGURES_TTL_S)
        self.tau = self._cached(lambda s: planner_inputs(s.connection()).rank_correlation.tau, FIGURES_TTL_S)
        # one cache for each of the OPEN_JOBS jobs whose pages were read last
        self.bulk_figures = lru_cache(OPEN_JOBS)(
            lambda job_id: self._cached(partial(bulk_figures, job_id=job_id), FIGURES_TTL_S)
        )
        self.words = ApplicationWords(sessions)
        self.readers_of_words: set[str] = set()  # form tokens of the sessions whose reading is in the audit

    def forget(self) -> None:
        """Drops the cached values that an operator may just have changed, so that they are read again."""
        for cache in (self.overview, self.waiting, self.paused_since, self.fleet, self.versions):
            cache.forget()

    def _cached(self, read: Callable[[Session], Read], ttl_s: float) -> TtlCache[Read]:
        return TtlCache(in_session(self._sessions, read), ttl_s, SPACING)

    def _charts(self, draw: Callable[[Sequence[Slot]], list[Chart]]) -> dict[str, TtlCache[list[Chart]]]:
        def read(over: ChartRange) -> list[Chart]:
            points = in_session(self._sessions, service_history.history)(over.back_s, over.step_s)
            return draw(time_slots(points, self.clock.get(), over.back_s, over.step_s))

        return {key: TtlCache(partial(read, over), CHARTS_TTL_S[key], SPACING) for key, over in RANGES.items()}


class ApplicationWords:
    """The first words of applications' instructions, kept for WORDS_KEPT_S after they were read first."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._words: dict[str, str | None] = {}
        self._since = time.monotonic()

    def get(self, applications: Collection[str]) -> Mapping[str, str]:
        """Returns the words by application; applications that clients named, or without stored texts, have none."""
        if time.monotonic() - self._since > WORDS_KEPT_S:
            self._words, self._since = {}, time.monotonic()
        unknown = [name for name in applications if name not in self._words]
        if unknown:
            with self._sessions() as session:
                found = first_words(session, unknown)
            self._words |= {name: found.get(name) for name in unknown}
        return {name: words for name in applications if (words := self._words.get(name)) is not None}


@dataclass(frozen=True, slots=True)
class ReadQueue:
    """The queue as one read found it: the requests are those that the planner's snapshot names and that still wait."""

    counts: RequestCounts
    snapshot: QueueSnapshot | None
    requests: Mapping[str, QueuedJob]


def _waiting(session: Session) -> ReadQueue:
    snapshot = read_queue_snapshot(session)
    named = operator_jobs.waiting_requests(session, snapshot.queue.named_ids if snapshot else [])
    return ReadQueue(operator_overview.request_counts(session), snapshot, named)


def _fleet(session: Session) -> FleetState:
    return FleetState(
        fleet_use.workers_in_use(session),
        fleet_use.served_batches(session, BACK_S),
        fleet_use.running_requests(session),
        fleet_use.empty_answers(session),
    )
