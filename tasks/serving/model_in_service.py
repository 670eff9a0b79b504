"""The model that a worker's process serves now, with the threads that serve it, and the change to another model.

The planner orders a change, and the lease heartbeat reads the order. The worker's batches go back to the queue, running
rows with their tokens. The worker stays registered, and writes a heartbeat while it loads the other model.
"""

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock, Thread

import structlog

from tasks.serving.batches.batch_runner import BatchRunner
from tasks.serving.batches.served_model import ServedModel

# Weight of the newest load in the mean of a model's loads; the first load may take longer than later ones. Not tuned.
NEWEST_WEIGHT = 0.3

log = structlog.get_logger()


# Loads the model of this name in place of the model loaded before, and returns it; may raise any error.
LoadModel = Callable[[str], ServedModel]
# Makes the threads that serve a model; the threads call the second argument with the model that the planner orders.
MakeRunner = Callable[[ServedModel, Callable[[str], None]], BatchRunner]


def mean_change_s(before_s: float, newest_s: float) -> float:
    """Returns the moving mean of the seconds of a model's changes; `before_s` is the last mean, 0 before the first."""
    return before_s + NEWEST_WEIGHT * (newest_s - before_s) if before_s else newest_s


class ModelInService:
    """Serves one model after the other; nothing else may keep a reference to a loaded model."""

    def __init__(self, model: str, load: LoadModel, make_runner: MakeRunner, on_broken: Callable[[str], None]) -> None:
        """Loads the first model. `on_broken` is called with the reason why the process must end."""
        self._model, self._load, self._make_runner, self._on_broken = model, load, make_runner, on_broken
        self._wanted: SimpleQueue[str] = SimpleQueue()
        self._lock = Lock()  # guards `_runner` and `_leaving`
        self._leaving, self._loads = False, 0
        self._runner: BatchRunner | None = None
        self._adopt(load(model))
        self._changes = Thread(target=self._change_on_order, name="model changes", daemon=True)

    def _adopt(self, served: ServedModel) -> BatchRunner:
        self._loads += 1
        self.facts, self.decode = replace(served.facts, model_changes=self._loads - 1), served.prompt_format.decode
        self._model = self.facts.model
        self._runner = self._make_runner(replace(served, facts=self.facts), self._wanted.put)
        return self._runner

    def start(self) -> None:
        """Announces the worker, so that the planner sends it batches, and starts the threads that serve them."""
        if self._runner is not None:
            self._runner.start()
        self._changes.start()

    def serve(self, batch_id: int) -> None:
        """Serves a batch; does nothing while another model is loaded, because the planner then takes the batch back."""
        runner = self._runner
        if runner is not None:
            runner.serve(batch_id)

    @property
    def works(self) -> bool:
        """Whether the worker renews its leases, or loads a model."""
        runner = self._runner
        return self._changes.is_alive() if runner is None else runner.works

    def drain(self, within_s: float, running_on_s: float = 0.0) -> None:
        """Begins to leave, as `BatchRunner.drain` does."""
        with self._lock:
            self._leaving = True
            if self._runner is not None:
                self._runner.drain(within_s, running_on_s)

    def stop(self) -> None:
        """Begins to leave, unless the worker is leaving already; returns once all work has been given back."""
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
        before, loadable = self._model, self.facts.loadable
        log.info("model changes", model=wanted)
        with self._lock:
            if self._leaving or wanted not in loadable:
                return
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.leave_model(loadable[wanted].change_s)
            if runner.late:
                return self._on_broken("the engine's step did not end before the change of model")
        del runner  # drops the loaded model, which the runner refers to
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
