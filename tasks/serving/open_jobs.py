"""The jobs of this worker process whose leases have to be renewed: from taking the batch until it is closed."""

from collections.abc import Collection
from threading import Lock

from models.leasing.leases import Lease
from tasks.serving.batch_job import BatchJob


class OpenJobs:
    """Jobs by lease; any thread may call any method."""

    def __init__(self) -> None:
        self._by_lease: dict[Lease, BatchJob] = {}
        self._lock = Lock()

    def add(self, job: BatchJob) -> None:
        """Its lease is renewed from now on."""
        with self._lock:
            self._by_lease[job.lease] = job

    def close(self, leases: Collection[Lease]) -> None:
        """These batches are written or lost: release whoever waits for them. Leases that are not open are ignored."""
        with self._lock:
            for lease in self._by_lease.keys() & set(leases):
                self._by_lease.pop(lease).closed.set()

    @property
    def any_open(self) -> bool:
        """Whether there is any."""
        return bool(self._by_lease)

    def by_lease(self) -> dict[Lease, BatchJob]:
        """A copy of the open jobs."""
        with self._lock:
            return dict(self._by_lease)
