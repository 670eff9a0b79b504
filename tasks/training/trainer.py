"""The trainer's jobs: refit both models on the log, publish what is not worse, watch how well predictions rank."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import structlog
from sqlalchemy import Connection, Engine

from learning.calibration.drift_guard import accuracy_by_application
from learning.features.text_encoders import Encoder
from learning.metrics import tau
from learning.predictors.length_predictor import Outcome
from learning.predictors.predictor_factory import make_predictor
from learning.retraining.refit import Candidate, refit, refit_serving_times
from learning.retraining.training_set import TrainingSetBounds
from learning.serving_time import ServedBatch
from learning.store import DigestMismatch, NotStorable, digest, dump, load
from models import batch_claims, training_log
from scheduling.costs import ServingCurves
from tasks.outcomes import outcome_of

MOST_READ = 20_000  # answers or batches of the log that a refit looks at
WATCHED = 500  # last answers that predictions are judged on
FEWEST_WATCHED = 30

log = structlog.get_logger()


@dataclass
class Trainer:
    """Both jobs of one trainer process."""

    database: Engine
    predictor: str
    encoder: Encoder
    _lengths_until: float = 0.0  # what was learned from, or found not worth it, up to then
    _batches_until: float = 0.0

    def refit_length(self) -> None:
        """Magnus III-B: fit a fresh predictor on what the one in service got wrong."""
        with self.database.begin() as connection:
            now = training_log.now(connection)
            finished = training_log.finished_requests(connection, MOST_READ, TrainingSetBounds().age_s)
            outcomes = [outcome_of(request) for request in finished]
            self._watch(connection, outcomes[-WATCHED:])
            current = _in_service(connection, "length")
        candidate = refit(
            current,
            make_predictor(self.predictor, self.encoder),
            outcomes,
            since=self._lengths_until,
            now=now,
        )
        self._lengths_until = self._conclude("length", candidate, self._lengths_until)

    def refit_serving_time(self) -> None:
        """Magnus III-D: refit each worker's serving time estimator on what it got wrong."""
        with self.database.begin() as connection:
            now = training_log.now(connection)
            batches = training_log.finished_batches(connection, MOST_READ, TrainingSetBounds().age_s)
            curves = training_log.profiles(connection)
            current = _in_service(connection, "serving_time")
        candidate = refit_serving_times(
            current,
            [ServedBatch(b.worker, b.model, b.size, b.length, b.generation_length, b.serving_s, b.at) for b in batches],
            {key: ServingCurves(tuple(c["prefill"]), tuple(c["decode"])) for key, c in curves.items()},
            since=self._batches_until,
            now=now,
        )
        self._batches_until = self._conclude("serving_time", candidate, self._batches_until)

    def _conclude(self, kind: str, candidate: Candidate | None, until: float) -> float:
        """Publish a candidate that deserves it; up to when the log is learned."""
        if candidate is None:
            return until
        version = None
        if candidate.publish:
            stored = dump(candidate.model)
            with self.database.begin() as connection:
                version = training_log.publish(
                    connection, kind, stored, digest(stored), candidate.scores, candidate.data
                )
        log.info("refitted", kind=kind, published=version, reason=candidate.reason, scores=candidate.scores)
        return float(candidate.data["until"])

    def _watch(self, connection: Connection, outcomes: Sequence[Outcome]) -> None:
        """Publish how well recent predictions ranked the answers: policies trust a predictor as it deserves."""
        judged = [o for o in outcomes if not o.censored and o.predicted_tokens is not None]
        if len(judged) < FEWEST_WATCHED:
            return
        predicted = np.array([o.predicted_tokens for o in judged], np.float64)
        actual = np.array([o.generated_tokens for o in judged], np.float64)
        by_application = {name: asdict(accuracy) for name, accuracy in accuracy_by_application(judged).items()}
        state = {"n": len(judged), "tau": round(tau(predicted, actual), 4), "applications": by_application}
        batch_claims.write_state(connection, "prediction", state)


def _in_service(connection: Connection, kind: str) -> Any:
    published = training_log.active_version(connection, kind)
    if published is None:
        return None
    try:
        return load(published.stored, published.sha256)
    except (DigestMismatch, NotStorable) as error:
        log.error("version in service cannot be read", version=published.version, error=str(error))
        return None
