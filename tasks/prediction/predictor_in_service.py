"""The predictor in service: the active published version, corrected online, applied to every new request."""

from collections.abc import Callable, Sequence
from time import monotonic

import structlog
from sqlalchemy import Engine

from learning.calibration import CalibratedPredictor
from learning.features.length_predictor import LengthPredictor
from learning.predictors.cold_start import RunningRegression
from models import model_versions, request_predictions, training_log
from models.connections.session import in_transaction
from models.request_predictions import UnpredictedRequest
from models.training_log import FinishedRequest
from processes.outcomes import OutcomeCursor, outcome_of, prompt_of
from processes.published_models import load_active
from scheduling.request import BACKGROUND_TIERS

# One read returns at most this many outcomes, the newest ones. This bounds the first read after a start, which finds
# the outcomes of an hour; the calibration itself keeps 200 of each application. Not tuned.
MOST_OBSERVED = 1000
OBSERVED_AGE_S = 3600.0  # a first read goes back this far: older outcomes say little about present errors. Not tuned.
# Requests that are claimed and predicted together: later requests wait for them. A larger chunk needs fewer
# transactions for a bulk job's lines; with 256, which take 0.15 s on a busy machine, others waited twice as long.
CHUNK = 64
# requests predicted again together: new ones wait for them. Not tuned.
OUTDATED_CHUNK = 64
ALL_RUNNING_VERSIONS = "running-~"  # sorts behind every running version

log = structlog.get_logger()


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
        """Until a version is published, `untrained` predicts, by default a regression on the answers so far.

        Every `check_every_s` it looks for a newer version and new outcomes. It predicts `chunk` requests and reads
        `most_observed` outcomes at a time. Published versions are corrected by them if `corrects`.
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
        self._outdated_before: str | None = None  # predictions of running versions below this one are to be renewed
        self._outcomes = OutcomeCursor()
        self._check_at = 0.0

    def run(self, on_predicted: Callable[[bool], None]) -> int:
        """Predict every request that has no prediction; returns how many.

        After each commit it calls `on_predicted`, with False if only lines of bulk jobs were predicted.
        """
        total = 0
        while True:
            if monotonic() >= self._check_at:
                self._look_at_what_is_new()
            chunk = in_transaction(self._engine, request_predictions.claim_unpredicted)(self._chunk)
            total += self._predict_claimed(chunk)
            if monotonic() >= self._check_at:
                beat = in_transaction(self._engine, request_predictions.write_predictor_heartbeat)
                beat(self._version, predicted=bool(chunk))
                self._check_at = monotonic() + self._check_every_s
            if not chunk:
                break
            on_predicted(chunk[0].tier not in BACKGROUND_TIERS)
        if self._outdated_before is not None and self._predict_again(self._outdated_before):
            on_predicted(False)
        return total

    def _predict_claimed(self, chunk: Sequence[UnpredictedRequest]) -> int:
        """Predict requests while no connection is held, and write the predictions; returns the number written."""
        if not chunk:
            return 0
        lengths = self._predict(chunk)
        return in_transaction(self._engine, request_predictions.write_predictions)(chunk, lengths, self._version)

    def _look_at_what_is_new(self) -> None:
        """Adopt a newer version, and correct the predictor in service by the new outcomes."""
        self._adopt_active_version()
        new = in_transaction(self._engine, training_log.finished_requests)(
            self._most_observed, OBSERVED_AGE_S, self._outcomes.after, self._outcomes.known_ids
        )
        self._outcomes.advance(new, monotonic())
        if new:
            self._correct(new)

    def _adopt_active_version(self) -> None:
        """Replace the predictor in service by the active published version if that is another one."""
        name = in_transaction(self._engine, model_versions.active_name)("length")
        if name is None or name == self._version:
            return
        published = load_active(self._engine.begin, "length")
        if published is None or published.version == self._version:
            return
        self._predictor = CalibratedPredictor(published.model)
        self._version, self._outcomes = published.version, OutcomeCursor(published.until)
        self._outdated_before = ALL_RUNNING_VERSIONS
        log.info("predictor adopted", version=published.version)

    def _correct(self, new: Sequence[FinishedRequest]) -> None:
        """Correct the predictor in service by these outcomes, application by application."""
        if self._corrects or isinstance(self._predictor, RunningRegression):
            self._predictor.observe([outcome_of(request) for request in new])
        self._answers += len(new)
        if isinstance(self._predictor, RunningRegression) and self._answers >= max(1, 2 * self._answers_in_version):
            self._answers_in_version = self._answers
            self._version = self._outdated_before = running_version(self._answers)

    def _predict_again(self, outdated_before: str) -> int:
        """Predict again some waiting requests that an older running version predicted; returns how many."""
        most = min(OUTDATED_CHUNK, self._chunk)
        chunk = in_transaction(self._engine, request_predictions.claim_outdated)(outdated_before, most)
        if len(chunk) < most:
            self._outdated_before = None
        return self._predict_claimed(chunk)

    def _predict(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        """Predicts these requests; requests for vectors and scores, which generate nothing, count as one token."""
        known = {one.id: (1, 1) for one in requests if one.kind != "answer"}
        others = [one for one in requests if one.id not in known]
        return known | self._predict_lengths(others) if others else known

    def _predict_lengths(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        """Predicts these requests; a request whose text makes the predictor fail gets its limit."""
        try:
            return self._predict_together(requests)
        except Exception as error:
            if len(requests) == 1:
                log.error("not predicted", request=requests[0].id, error=repr(error))
                return {requests[0].id: (requests[0].limit_tokens, requests[0].limit_tokens)}
        middle = len(requests) // 2
        return self._predict_lengths(requests[:middle]) | self._predict_lengths(requests[middle:])

    def _predict_together(self, requests: Sequence[UnpredictedRequest]) -> dict[str, tuple[int, int]]:
        predictions = self._predictor.predict([*map(prompt_of, requests)])
        return {r.id: (p.tokens, p.upper_tokens) for r, p in zip(requests, predictions, strict=True)}
