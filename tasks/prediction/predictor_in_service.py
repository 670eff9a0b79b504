"""The predictor in service: the active published version, corrected online, applied to every new request."""

from collections.abc import Callable, Sequence
from time import monotonic

import structlog
from sqlalchemy import Connection, Engine

from learning.calibration import CalibratedPredictor
from learning.features.text_encoders import make_encoder
from learning.predictors.cold_start import RunningRegression
from learning.predictors.length_predictor import LengthPredictor, Prompt
from learning.predictors.predictor_factory import PerceptionTuning, make_predictor
from models import model_versions, request_predictions, training_log
from models.request_predictions import UnpredictedRequest
from scheduling.request import is_background
from settings import Settings
from tasks.prediction.outcomes import OutcomeCursor, outcome_of
from tasks.published_models import load_active

# Most outcomes of one read, the newest ones. Bounds the first read after a start, which finds an hour of them; the
# calibration itself keeps 200 of each application. Not tuned.
MOST_OBSERVED = 1000
OBSERVED_AGE_S = 3600.0  # a first read goes back this far: older outcomes say little about present errors. Not tuned.
# Requests that one transaction claims and predicts: later requests wait for them. A larger chunk needs fewer
# transactions for a bulk job's lines; with 256, which take 0.15 s on a busy machine, others waited twice as long.
CHUNK = 64
# requests predicted again in one transaction, during which the planner cannot claim them. Not tuned.
OUTDATED_CHUNK = 64
ALL_RUNNING_VERSIONS = "running-~"  # sorts behind every running version

log = structlog.get_logger()


def make_configured(settings: Settings) -> LengthPredictor:
    """Returns MAGNUS_PREDICTOR untrained; raises NeedsModel, or what loading its encoder raises."""
    name: str = settings.predictor
    if settings.magnus == "published" and "predictor" not in settings.model_fields_set:
        name = "usin-mean"
    tuning = PerceptionTuning(settings.perception_form, settings.perception_target, settings.perception_epochs)
    return make_predictor(name, make_encoder(settings.encoder), settings.model, tuning)


def running_version(answers: int) -> str:
    """Returns the version name of a regression on this number of answers; names sort by this number."""
    return f"running-{answers:09}"


class PredictorInService:
    """Predicts with the active version of the length predictor; any number of these may run side by side."""

    def __init__(
        self,
        engine: Engine,
        untrained: LengthPredictor | None = None,
        check_every_s: float = 1.0,
        *,
        chunk: int = CHUNK,
        most_observed: int = MOST_OBSERVED,
        corrects: bool = True,
    ) -> None:
        """Until a version is published `untrained` predicts, by default a regression on the answers so far.

        Every `check_every_s` it looks for a newer version and new outcomes. One transaction predicts `chunk` requests
        and reads `most_observed` outcomes. Published versions are corrected by them if `corrects`.
        """
        self._corrects = corrects
        self._engine, self._check_every_s = engine, check_every_s
        self._chunk, self._most_observed = chunk, most_observed
        self._predictor: CalibratedPredictor | RunningRegression
        if untrained is None:
            self._predictor, self._version = RunningRegression(), running_version(0)
        else:
            self._predictor, self._version = CalibratedPredictor(untrained), untrained.name
        self._answers = self._answers_in_version = 0  # answers that the running regression has seen
        self._outdated_before: str | None = None  # predictions of older running versions are renewed
        self._outcomes = OutcomeCursor()
        self._check_at = 0.0

    def run(self, on_predicted: Callable[[bool], None]) -> int:
        """Predict every request that has no prediction; returns how many.

        Calls `on_predicted` after each commit, with whether others than lines of bulk jobs were predicted.
        """
        total = 0
        while True:
            with self._engine.begin() as connection:
                if monotonic() >= self._check_at:
                    self._adopt_active_version(connection)
                    self._correct(connection)
                claimed = request_predictions.claim_unpredicted(connection, self._chunk)
                chunk = those_to_predict_now(claimed)
                if chunk:
                    request_predictions.write_predictions(connection, self._predict(chunk), self._version)
                if monotonic() >= self._check_at:
                    request_predictions.write_predictor_heartbeat(connection, self._version)
                    self._check_at = monotonic() + self._check_every_s
            if chunk:
                on_predicted(not is_background(chunk[0].priority))
            total += len(chunk)
            if len(chunk) == len(claimed) < self._chunk:
                break
        if self._outdated_before is not None and self._predict_again(self._outdated_before):
            on_predicted(False)
        return total

    def _adopt_active_version(self, connection: Connection) -> None:
        """Replace the predictor in service by the active published version if that is another one."""
        name = model_versions.active_name(connection, "length")
        if name is None or name == self._version:
            return
        published = load_active(connection, "length")
        if published is None or published.version == self._version:
            return
        self._predictor = CalibratedPredictor(published.model)
        self._version, self._outcomes = published.version, OutcomeCursor(published.until)
        self._outdated_before = ALL_RUNNING_VERSIONS
        log.info("predictor adopted", version=published.version)

    def _correct(self, connection: Connection) -> None:
        """Correct the predictor in service by the new outcomes, application by application."""
        new = training_log.finished_requests(
            connection, self._most_observed, OBSERVED_AGE_S, self._outcomes.after, self._outcomes.known_ids
        )
        self._outcomes.advance(new, monotonic())
        if not new:
            return
        if self._corrects or isinstance(self._predictor, RunningRegression):
            self._predictor.observe([outcome_of(request) for request in new])
        self._answers += len(new)
        if isinstance(self._predictor, RunningRegression) and self._answers >= max(1, 2 * self._answers_in_version):
            self._answers_in_version = self._answers
            self._version = self._outdated_before = running_version(self._answers)

    def _predict_again(self, outdated_before: str) -> int:
        """Predict again some waiting requests that an older running version predicted; returns how many."""
        with self._engine.begin() as connection:
            most = min(OUTDATED_CHUNK, self._chunk)
            chunk = request_predictions.claim_outdated(connection, outdated_before, most)
            if chunk:
                request_predictions.write_predictions(connection, self._predict(chunk), self._version)
        if len(chunk) < most:
            self._outdated_before = None
        return len(chunk)

    def _predict(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        """Predict these requests; those with a limit of one token, such as calls for vectors, get that limit."""
        known = {one.id: (1, 1) for one in requests if one.limit_tokens == 1}
        others = [one for one in requests if one.id not in known]
        return known | self._predict_lengths(others) if others else known

    def _predict_lengths(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        """Predict these requests; one whose text makes the predictor fail gets its limit."""
        try:
            return self._predict_together(requests)
        except Exception as error:
            if len(requests) == 1:
                log.error("not predicted", request=requests[0].id, error=repr(error))
                return {requests[0].id: (requests[0].limit_tokens, requests[0].limit_tokens)}
        middle = len(requests) // 2
        return self._predict_lengths(requests[:middle]) | self._predict_lengths(requests[middle:])

    def _predict_together(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        prompts = [
            Prompt(r.application, r.instructions, r.input, r.input_tokens, r.prompt_tokens, r.limit_tokens)
            for r in requests
        ]
        predictions = self._predictor.predict(prompts)
        return {r.id: (p.tokens, p.upper_tokens) for r, p in zip(requests, predictions, strict=True)}


def those_to_predict_now(claimed: Sequence[UnpredictedRequest]) -> Sequence[UnpredictedRequest]:
    """Returns the requests that are not lines of bulk jobs, or the lines if there are no others."""
    others = [request for request in claimed if not is_background(request.priority)]
    return others or claimed
