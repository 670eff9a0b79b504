"""The trainer's two jobs: each refits a learned model on the log and publishes it unless the active one is better.

Both run more often in a new service, where each answer adds much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from sqlalchemy import Connection, Engine

from learning.estimators.metrics import accuracy_by_application
from learning.features.length_predictor import LengthPredictor, Outcome
from learning.retraining.refit import Candidate, refit, refit_serving_times
from learning.retraining.training_set import TrainingSetBounds, known_lengths
from learning.store import digest, dump
from models import model_versions, planner_state, training_log
from models.connections.session import in_transaction
from models.connections.sql import database_clock
from models.planning import leadership
from models.planning.leadership import Lead
from processes.outcomes import outcome_of
from processes.published_models import load_active
from scheduling.rank_correlation import rank_correlation

# A refit reads this many newest answers or batches, and chooses the training set among them. More would lengthen the
# query and the fit. Not tuned.
MOST_READ = 20_000
# Predictions are judged by this many newest answers. More react later to a change, fewer make tau noisier. Not tuned.
MOST_JUDGED = 500
FEWEST_JUDGED = 30  # with fewer answers tau is mostly noise: its standard error at 30 is about 0.13 without correlation
# The first refit waits for this many answers. It holds out a fifth; fewer rarely give the 40 to fit and 10 to check.
FIRST_REFIT_ANSWERS = 60
FIRST_REFIT_BATCHES = 30  # the first refit of serving times holds out a fifth of these; 24 suffice for 8 coefficients
MOST_EARLY_ANSWERS = 4_000  # with more answers, the regular interval is enough; any value above 1,000 works

log = structlog.get_logger()


@dataclass
class RefitJobs:
    """Both refit jobs with their dependencies."""

    database: Engine
    make_untrained: Callable[[], LengthPredictor]
    bounds: TrainingSetBounds = field(default_factory=TrainingSetBounds)
    lead: Lead | None = None  # if given, a refit is published only while this trainer still leads
    # by kind, seconds since the epoch at which the newest outcome of the last refit ended, published or not
    learned_until: dict[str, float] = field(default_factory=dict)
    published: bool = False  # whether refits are those of the paper

    def refit_length(self) -> None:
        """Fits a fresh length predictor, adding the outcomes that the active predictor got wrong (Magnus III-B)."""
        with self.database.begin() as connection:
            now = database_clock(connection).timestamp()
            finished = training_log.finished_requests(connection, MOST_READ, TrainingSetBounds().age_s)
            outcomes = [outcome_of(request) for request in finished]
            self._judge_predictions(connection, outcomes[-MOST_JUDGED:])
        active = load_active(self.database.begin, "length")
        candidate = refit(
            active.model if active else None,
            self.make_untrained(),
            outcomes,
            since=self.learned_until.get("length", 0.0),
            now=now,
            bounds=self.bounds,
            published=self.published,
        )
        self._conclude("length", candidate)

    def refit_serving_time(self) -> None:
        """Refits each worker's serving time estimator on batches that the active version got wrong (Magnus III-D)."""
        with self.database.begin() as connection:
            now = database_clock(connection).timestamp()
            batches = training_log.finished_batches(connection, MOST_READ, TrainingSetBounds().age_s)
            curves = training_log.worker_profiles(connection)
        active = load_active(self.database.begin, "serving_time")
        candidate = refit_serving_times(
            active.model if active else None,
            batches,
            curves,
            since=self.learned_until.get("serving_time", 0.0),
            now=now,
            published=self.published,
        )
        self._conclude("serving_time", candidate)

    def _conclude(self, kind: str, candidate: Candidate | None) -> None:
        """Publishes the candidate if it passed its check, and remembers up to which instant it has learned."""
        if candidate is None:
            return
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
        self.learned_until[kind] = float(candidate.data["until"])

    def _judge_predictions(self, connection: Connection, outcomes: Sequence[Outcome]) -> None:
        """Publishes what recent answers say about predictions and prompts; policies rely on them accordingly."""
        judged = [o for o in known_lengths(outcomes) if o.predicted_tokens is not None]
        if len(judged) < FEWEST_JUDGED:
            return
        lengths = [(o.prompt.prompt_tokens, o.predicted_tokens, o.generated_tokens) for o in judged]
        ranked = rank_correlation(*np.array(lengths, np.float64).T)
        by_application = {
            application: {name: getattr(scores, name) for name in ("n", "tau", "coverage", "mae")}
            for application, scores in accuracy_by_application(judged).items()
        }
        measured = {"n": len(judged), "tau": round(ranked.tau or 0.0, 4), "by_prompts": ranked.by_prompts}
        planner_state.write_service_state(connection, "prediction", {**measured, "applications": by_application})


@dataclass
class EarlyRefits:
    """Refits once there are `at` entries in the log, and again at each doubling, up to MOST_EARLY_ANSWERS."""

    database: Engine
    refit: Callable[[], None]
    count: Callable[[Connection, int, float], int] = training_log.count_answers
    at: int = FIRST_REFIT_ANSWERS

    def refit_if_due(self) -> None:
        """Refit if there are enough entries."""
        if self.at > MOST_EARLY_ANSWERS:
            return
        entries = in_transaction(self.database, self.count)(MOST_EARLY_ANSWERS, TrainingSetBounds().age_s)
        if entries >= self.at:
            self.at = 2 * entries  # so that there is only one refit after a restart, however many entries there are
            self.refit()
