"""The trainer's two jobs: each refits a learned model on the log and publishes it unless the active one is better.

Both run more often in a new service, where each answer adds much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog
from sqlalchemy import Connection, Engine

from learning.metrics import accuracy_by_application
from learning.predictors.length_predictor import LengthPredictor, Outcome
from learning.retraining.refit import Candidate, refit, refit_serving_times
from learning.retraining.training_set import TrainingSetBounds, known_lengths
from learning.serving_time import ServedBatch
from learning.store import digest, dump
from models import model_versions, training_log
from models.planning import leadership, planner_state
from models.planning.leadership import Lead
from scheduling.rank_correlation import kendall_tau
from tasks.prediction.outcomes import outcome_of
from tasks.published_models import load_active

# Newest answers or batches that a refit reads. More would lengthen the query and the fit; the training set is chosen
# among them. Not tuned.
MOST_READ = 20_000
# Newest answers by which predictions are judged. More reacts later to a change, fewer makes tau noisier. Not tuned.
MOST_JUDGED = 500
FEWEST_JUDGED = 30  # with fewer answers tau is mostly noise: its standard error at 30 is about 0.13 without correlation
# Answers before the first refit: a fifth is held out, and fewer rarely give the 40 and 10 that a refit needs.
FIRST_REFIT_ANSWERS = 60
FIRST_REFIT_BATCHES = 30  # before the first refit: a fifth is held out, and 24 are enough for eight coefficients
MOST_EARLY_ANSWERS = 4_000  # beyond it the regular interval is enough; any value above 1,000 works

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LearnedUntil:
    """Ends of the newest outcomes used by the last refits, published or not, in seconds since the epoch."""

    lengths: float = 0.0
    batches: float = 0.0


@dataclass
class RefitJobs:
    """Both refit jobs with their dependencies."""

    database: Engine
    make_untrained: Callable[[], LengthPredictor]
    bounds: TrainingSetBounds = field(default_factory=TrainingSetBounds)
    lead: Lead | None = None  # if given, a refit is published only while this trainer still leads
    learned: LearnedUntil = field(default_factory=LearnedUntil)
    published: bool = False  # refits as the paper has them

    def refit_length(self) -> None:
        """Fit a fresh length predictor, adding the outcomes that the active one got wrong (Magnus III-B)."""
        with self.database.begin() as connection:
            now = training_log.now(connection)
            finished = training_log.finished_requests(connection, MOST_READ, TrainingSetBounds().age_s)
            outcomes = [outcome_of(request) for request in finished]
            self._judge_predictions(connection, outcomes[-MOST_JUDGED:])
            active = _load_active(connection, "length")
        candidate = refit(
            active,
            self.make_untrained(),
            outcomes,
            since=self.learned.lengths,
            now=now,
            bounds=self.bounds,
            published=self.published,
        )
        until = self._conclude("length", candidate, self.learned.lengths)
        self.learned = replace(self.learned, lengths=until)

    def refit_serving_time(self) -> None:
        """Refit each worker's serving time estimator on the batches that the active one got wrong (Magnus III-D)."""
        with self.database.begin() as connection:
            now = training_log.now(connection)
            batches = training_log.finished_batches(connection, MOST_READ, TrainingSetBounds().age_s)
            curves = training_log.worker_profiles(connection)
            active = _load_active(connection, "serving_time")
        candidate = refit_serving_times(
            active,
            [ServedBatch(b.worker, b.model, b.size, b.length, b.generation_length, b.serving_s, b.at) for b in batches],
            curves,
            since=self.learned.batches,
            now=now,
            published=self.published,
        )
        until = self._conclude("serving_time", candidate, self.learned.batches)
        self.learned = replace(self.learned, batches=until)

    def _conclude(self, kind: str, candidate: Candidate | None, until: float) -> float:
        """Publish the candidate if it passed; returns the end of the newest outcome that it learned from."""
        if candidate is None:
            return until
        version = None
        if candidate.publish:
            stored = dump(candidate.model)
            with self.database.begin() as connection:
                if self.lead is not None:
                    leadership.hold(connection, self.lead)
                version = model_versions.publish(
                    connection, kind, stored, digest(stored), candidate.scores, candidate.data
                )
        log.info("refitted", kind=kind, published=version, reason=candidate.reason, scores=candidate.scores)
        return float(candidate.data["until"])

    def _judge_predictions(self, connection: Connection, outcomes: Sequence[Outcome]) -> None:
        """Publish how well recent predictions ranked the answers; policies rely on predictions accordingly."""
        judged = [o for o in known_lengths(outcomes) if o.predicted_tokens is not None]
        if len(judged) < FEWEST_JUDGED:
            return
        predicted = np.array([o.predicted_tokens for o in judged], np.float64)
        actual = np.array([o.generated_tokens for o in judged], np.float64)
        by_application = {
            application: {name: getattr(scores, name) for name in ("n", "tau", "coverage", "mae")}
            for application, scores in accuracy_by_application(judged).items()
        }
        state = {"n": len(judged), "tau": round(kendall_tau(predicted, actual), 4), "applications": by_application}
        planner_state.write_service_state(connection, "prediction", state)


def _load_active(connection: Connection, kind: str) -> Any:
    """Returns the active version's model, None without one."""
    published = load_active(connection, kind)
    return published.model if published else None


@dataclass
class EarlyRefits:
    """Refits once there are `at` entries in the log, and again whenever their number has doubled, up to a bound."""

    database: Engine
    refit: Callable[[], None]
    count: Callable[[Connection, int, float], int] = training_log.count_answers
    at: int = FIRST_REFIT_ANSWERS

    def refit_if_due(self) -> None:
        """Refit if there are enough entries."""
        if self.at > MOST_EARLY_ANSWERS:
            return
        with self.database.begin() as connection:
            entries = self.count(connection, MOST_EARLY_ANSWERS, TrainingSetBounds().age_s)
        if entries >= self.at:
            self.at = 2 * entries  # one refit after a restart, however many entries there are
            self.refit()
