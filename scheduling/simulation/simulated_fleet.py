"""The workers of a simulation, and their descriptions for policies."""

from collections.abc import Iterator

from scheduling.policy import Mode, Worker
from scheduling.simulation.simulated_worker import SimulatedWorker


class SimulatedFleet:
    """Workers by name, and the idle ones for policies of mode `batch`, which are asked only while a worker is idle.

    Such a policy does not read `busy_s`, the only field that changes between a worker's events, so descriptions are
    cached between events. Policies of other modes get a new description each time.
    """

    def __init__(self, mode: Mode) -> None:
        self._keeps_descriptions = mode == "batch"
        self._workers: dict[str, SimulatedWorker] = {}
        self._departed: list[SimulatedWorker] = []
        self._descriptions: dict[str, Worker] = {}
        self._idle: set[str] = set()

    def __getitem__(self, name: str) -> SimulatedWorker:
        return self._workers[name]

    def __iter__(self) -> Iterator[SimulatedWorker]:
        """Return every worker that ever joined; workers that have left come last."""
        yield from self._workers.values()
        yield from self._departed

    def join(self, worker: SimulatedWorker) -> None:
        """Add a worker to the fleet."""
        self._workers[worker.instance.name] = worker

    def leave(self, name: str) -> SimulatedWorker:
        """Remove a worker and return it."""
        worker = self._workers.pop(name)
        self._descriptions.pop(name, None)
        self._idle.discard(name)
        self._departed.append(worker)
        return worker

    def refresh(self, worker: SimulatedWorker, now: float) -> bool:
        """Update a worker whose state has changed; return whether it is idle, so that the policy should be asked."""
        if not self._keeps_descriptions:
            return False
        name = worker.instance.name
        description = self._descriptions[name] = worker.describe(now)
        if description.idle:
            self._idle.add(name)
        else:
            self._idle.discard(name)
        return description.idle

    def may_take_work(self) -> bool:
        """Return whether the policy may be asked: in mode `batch` only while some worker is idle."""
        return bool(self._idle) or not self._keeps_descriptions

    def describe(self, now: float) -> list[Worker]:
        """Return the workers as policies see them, in the order in which they joined."""
        if self._keeps_descriptions:
            return list(self._descriptions.values())
        return [worker.describe(now) for worker in self._workers.values()]
