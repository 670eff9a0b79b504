"""The predictor: claims what nobody predicted, predicts it in one batch, writes it; adopts newly published versions."""

from collections.abc import Callable
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine

from learning.length import LengthPredictor, Prompt
from learning.store import DigestMismatch, NotStorable, load
from models import predicting, training
from models.predicting import Predicted, Unpredicted

CHUNK = 256  # requests claimed at once: their rows stay locked for as long as it takes

log = structlog.get_logger()


class Predictor:
    """The length predictor in service; any number may run side by side."""

    def __init__(self, engine: Engine, untrained: LengthPredictor, look_around_s: float = 0.5) -> None:
        """`untrained` predicts until a version is published; every `look_around_s` it looks for a newer one."""
        self._engine, self._look_around_s = engine, look_around_s
        self._predictor, self._version = untrained, untrained.name
        self._look_around_at = 0.0
        self._adopted: str | None = None  # also one that could not be read: it is not tried again

    def run(self, on_predicted: Callable[[], None]) -> int:
        """Predict all that waits; `on_predicted` is called after each committed chunk. The number of requests."""
        total = 0
        while True:
            with self._engine.begin() as connection:
                if monotonic() >= self._look_around_at:
                    self._adopt(connection)
                chunk = predicting.claim_unpredicted(connection, CHUNK)
                if chunk:
                    predicting.write_predictions(connection, self._predict(chunk), self._version)
                if monotonic() >= self._look_around_at:
                    predicting.say_alive(connection, self._version)
                    self._look_around_at = monotonic() + self._look_around_s
            if chunk:
                on_predicted()
            total += len(chunk)
            if len(chunk) < CHUNK:
                return total

    def _adopt(self, connection: Connection) -> None:
        name = training.active_name(connection, "length")
        if name is None or name == self._adopted:
            return
        self._adopted = name
        published = training.active_version(connection, "length")
        if published is None:
            return
        try:
            self._predictor, self._version = load(published.stored, published.sha256), published.version
        except (DigestMismatch, NotStorable) as error:
            log.error("predictor not adopted", version=published.version, error=str(error))
            return
        log.info("predictor adopted", version=published.version)

    def _predict(self, requests: list[Unpredicted]) -> list[Predicted]:
        prompts = [
            Prompt(r.application, r.instructions, r.input, r.input_tokens, r.prompt_tokens, r.limit_tokens)
            for r in requests
        ]
        return [
            Predicted(request.id, prediction.tokens, prediction.upper_tokens)
            for request, prediction in zip(requests, self._predictor.predict(prompts), strict=True)
        ]
