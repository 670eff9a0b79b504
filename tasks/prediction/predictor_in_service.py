"""The predictor: claims what nobody predicted, predicts it in one batch, writes it.

It adopts newly published versions and corrects the one in service by what came of requests since that was fitted.
"""

from collections.abc import Callable
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine

from learning.calibration.calibrated_predictor import CalibratedPredictor
from learning.predictors.length_predictor import LengthPredictor, Prompt
from learning.store import DigestMismatch, NotStorable, load
from models import model_versions, request_predictions, training_log
from models.request_predictions import Predicted, Unpredicted
from tasks.outcomes import outcome_of

MOST_OBSERVED = 1000  # outcomes at a look; of more, the newest
OBSERVED_AGE_S = 3600.0  # older outcomes say little of what comes now
CHUNK = 256  # requests claimed at once: their rows stay locked for as long as it takes

log = structlog.get_logger()


class PredictorInService:
    """The length predictor in service; any number may run side by side."""

    def __init__(self, engine: Engine, untrained: LengthPredictor, look_around_s: float = 0.5) -> None:
        """`untrained` predicts until a version is published; every `look_around_s` it looks for a newer one."""
        self._engine, self._look_around_s = engine, look_around_s
        self._predictor, self._version = CalibratedPredictor(untrained), untrained.name
        self._observed_until = 0.0
        self._look_around_at = 0.0
        self._adopted: str | None = None  # also one that could not be read: it is not tried again

    def run(self, on_predicted: Callable[[], None]) -> int:
        """Predict all that waits; `on_predicted` is called after each committed chunk. The number of requests."""
        total = 0
        while True:
            with self._engine.begin() as connection:
                if monotonic() >= self._look_around_at:
                    self._adopt(connection)
                    self._observe(connection)
                chunk = request_predictions.claim_unpredicted(connection, CHUNK)
                if chunk:
                    request_predictions.write_predictions(connection, self._predict(chunk), self._version)
                if monotonic() >= self._look_around_at:
                    request_predictions.write_predictor_heartbeat(connection, self._version)
                    self._look_around_at = monotonic() + self._look_around_s
            if chunk:
                on_predicted()
            total += len(chunk)
            if len(chunk) < CHUNK:
                return total

    def _adopt(self, connection: Connection) -> None:
        name = model_versions.active_name(connection, "length")
        if name is None or name == self._adopted:
            return
        self._adopted = name
        published = model_versions.active_version(connection, "length")
        if published is None:
            return
        try:
            self._predictor = CalibratedPredictor(load(published.stored, published.sha256))
        except (DigestMismatch, NotStorable) as error:
            log.error("predictor not adopted", version=published.version, error=str(error))
            return
        self._version, self._observed_until = published.version, published.until
        log.info("predictor adopted", version=published.version)

    def _observe(self, connection: Connection) -> None:
        """Learn how far off the version in service is, application by application."""
        ended = training_log.finished_requests(connection, MOST_OBSERVED, OBSERVED_AGE_S, after=self._observed_until)
        news = [outcome_of(request) for request in ended if request.at > self._observed_until]
        if news:
            self._predictor.observe(news)
            self._observed_until = news[-1].at

    def _predict(self, requests: list[Unpredicted]) -> list[Predicted]:
        prompts = [
            Prompt(r.application, r.instructions, r.input, r.input_tokens, r.prompt_tokens, r.limit_tokens)
            for r in requests
        ]
        return [
            Predicted(request.id, prediction.tokens, prediction.upper_tokens)
            for request, prediction in zip(requests, self._predictor.predict(prompts), strict=True)
        ]
