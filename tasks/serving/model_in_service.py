"""The model that a worker's process serves now, with the threads that serve it, and the change to another model.

A change is the planner's order, which the lease heartbeat reads. The worker stays registered meanwhile: its batches go
back to the queue, its rows with their tokens, and it writes a heartbeat while it loads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread

import structlog

from inference.request_tokens import RequestTokens
from inference.serving_engine import ServingEngine
from models.leasing.leases import WorkerOffer
from models.leasing.worker_registration import WorkerRegistration
from tasks.serving.batches.batch_job import PrepareFormat, take_any_format
from tasks.serving.batches.batch_runner import BatchRunner

# Weight of the newest load in the mean of a model's loads; the first one may do more than later ones. Not tuned.
NEWEST_WEIGHT = 0.3

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model: how the worker's threads serve it, and what the worker announces."""

    make_engine: Callable[[], ServingEngine]
    prompt_format: RequestTokens
    announcement: WorkerRegistration
    offer: Callable[[], WorkerOffer] = WorkerOffer
    prepare_format: PrepareFormat = take_any_format


# Loads a model, in place of the one that it loaded before, and returns it; raises any error if it cannot be loaded.
LoadModel = Callable[[str], ServedModel]
# Makes the threads that serve a model; they call the second argument with the model that the planner wants instead.
MakeRunner = Callable[[ServedModel, Callable[[str], None]], BatchRunner]


def mean_change_s(before_s: float, newest_s: float) -> float:
    """Returns the mean of a model's changes with the newest one; `before_s` is 0 before the first."""
    return before_s + NEWEST_WEIGHT * (newest_s - before_s) if before_s else newest_s


class ModelInService:
    """Serves one model after the other; nothing else may keep a reference to a loaded model."""

    def __init__(self, model: str, load: LoadModel, make_runner: MakeRunner, on_broken: Callable[[str], None]) -> None:
        """Loads the first model. `on_broken` is called with the reason why the process must end."""
        self._model, self._load, self._make_runner, self._on_broken = model, load, make_runner, on_broken
        self._wanted: SimpleQueue[str] = SimpleQueue()
        self._lock = Lock()  # guards `_runner` and `_leaving`
        self._leaving = False
        self._runner: BatchRunner | None = None
        self._adopt(load(model))
        self._changes = Thread(target=self._change_on_order, name="model changes", daemon=True)

    def _adopt(self, served: ServedModel) -> BatchRunner:
        self.announcement, self.decode = served.announcement, served.prompt_format.decode
        self._model = served.announcement.model
        self._runner = self._make_runner(served, self._wanted.put)
        return self._runner

    def start(self) -> None:
        """Announce the worker and serve."""
        if self._runner is not None:
            self._runner.start()
        self._changes.start()

    def serve(self, batch_id: int) -> None:
        """Serve a batch; ignores one while another model is loaded, since the planner takes such a batch back."""
        runner = self._runner
        if runner is not None:
            runner.serve(batch_id)

    @property
    def works(self) -> bool:
        """Whether the worker renews its leases, or loads a model."""
        runner = self._runner
        return self._changes.is_alive() if runner is None else runner.works

    def drain(self, within_s: float, running_on_s: float = 0.0) -> None:
        """Begin to leave: see `BatchRunner.drain`."""
        with self._lock:
            self._leaving = True
            if self._runner is not None:
                self._runner.drain(within_s, running_on_s)

    def stop(self) -> None:
        """Leave, unless the worker is leaving already; returns once all work has been given back."""
        with self._lock:
            self._leaving, runner = True, self._runner
        if runner is not None:
            runner.stop()

    @property
    def late(self) -> bool:
        """Whether a thread was left in the middle of a step, or of loading a model."""
        runner = self._runner
        return runner is None or runner.late

    def _change_on_order(self) -> None:
        while True:
            wanted = self._wanted.get()
            if wanted != self._model:
                self._change(wanted)

    def _change(self, wanted: str) -> None:
        before, loadable = self._model, self.announcement.loadable
        log.info("model changes", model=wanted)
        with self._lock:
            if self._leaving or wanted not in loadable:
                return
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.leave_model(loadable[wanted].change_s)
            if runner.late:
                return self._on_broken("the engine's step did not end before the change of model")
        del runner  # and with it the loaded model
        served = self._loaded(wanted) or self._loaded(before)
        if served is None:
            return self._on_broken(f"neither {wanted} nor {before} could be loaded")
        with self._lock:
            if not self._leaving:
                self._adopt(served).start()

    def _loaded(self, model: str) -> ServedModel | None:
        try:
            return self._load(model)
        except Exception:  # any model may fail to load in its own way
            log.exception("model not loaded", model=model)
            return None
