"""Runs the promises in order, on their own services or on a shared one that is replaced when a promise breaks it."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.chaos.promise_rows import Promise, Row, Size
from benchmarks.chaos.promises import (
    bulk_promises,
    client_promises,
    engine_promises,
    host_promises,
    process_promises,
    server_promises,
    storage_promises,
)
from benchmarks.chaos.recording_client import bodies, client_of
from benchmarks.chaos.servers import GivenServers
from benchmarks.chaos.service_under_test import ServiceUnderTest, left_behind, service_under_test
from benchmarks.harness import until
from settings import PREFIX

PROMISES = {
    promise.name: promise
    for promise in (
        Promise("idle", client_promises.idle_connections),
        Promise("hostile", client_promises.hostile),
        Promise("models", storage_promises.learned_models),
        Promise("kills", process_promises.kills),
        Promise("rescue", process_promises.rescues),
        Promise("rate", process_promises.kill_rate),
        Promise("rolling", process_promises.rolling_restart),
        Promise("broker", server_promises.broker, breaks_servers=True),
        Promise("postgres", server_promises.postgres, breaks_servers=True),
        Promise("leaders", host_promises.leaders),
        Promise("canary", client_promises.canary),
        Promise("migration", storage_promises.newer_migration),
        Promise("bulk", bulk_promises.bulk_jobs),
        Promise("freezes", process_promises.freezes),
        Promise("cut", client_promises.cut_connections, own_service=True),
        Promise("webhooks", bulk_promises.webhooks, own_service=True),
        Promise("poison", engine_promises.poison, own_service=True),
        Promise("memory", engine_promises.out_of_memory, own_service=True),
        Promise("clocks", host_promises.clocks, own_service=True),
        Promise("disk", storage_promises.disk_full, own_service=True),
        Promise("refused", storage_promises.refused_starts, own_service=True),
        Promise("leaving", process_promises.comings_and_goings, own_service=True),
        Promise("soak", process_promises.soak, own_service=True),
    )
}


# seconds after a promise within which the service must be healthy; otherwise a new one replaces it
HEALTHY_WITHIN_S = 45.0
STOPPED_WITHIN_S = 5.0  # seconds after `magnus up` has ended: killed processes take a moment to leave the process table


class PromiseRunner:
    """Runs promises in a temporary directory; leaving the context stops everything that was started."""

    def __init__(self, size: Size, given: GivenServers | None = None) -> None:
        """The shared service uses `given` in place of embedded servers."""
        self._size, self._given = size, given
        self._stack = ExitStack()
        self._shared: ServiceUnderTest | None = None
        self._service_stack = ExitStack()
        self.seconds = 0.0  # duration of the last promise

    def __enter__(self) -> Self:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            # settings of this environment must not replace the defaults
            self._stack.callback(os.environ.__setitem__, name, os.environ.pop(name))
        temporary = tempfile.TemporaryDirectory(prefix="magnus-chaos-", ignore_cleanup_errors=True)
        self._directory = Path(self._stack.enter_context(temporary))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._service_stack.close()
        finally:
            self._stack.close()

    def run(self, promise: Promise) -> list[Row]:
        """Measure one promise; an error becomes its only row, which does not hold."""
        began = time.monotonic()
        try:
            rows = list(self._rows(promise))
        except Exception as error:  # so that the other promises are measured
            rows = [Row(promise.name, "measured", f"{type(error).__name__}: {str(error)[:160]}", False)]
            self.renew()
        self.seconds = time.monotonic() - began
        return rows

    def _rows(self, promise: Promise) -> Iterator[Row]:
        if promise.own_service:
            with tempfile.TemporaryDirectory(dir=self._directory, ignore_cleanup_errors=True) as directory:
                yield from self.renew()  # stops the shared service: two would share the cores
                yield from promise.run(Path(directory), self._size)
                yield nothing_left(Path(directory), promise.name)
            return
        service = self._service()
        yield from promise.run(service, self._size)
        if not _healthy(service):
            yield from self.renew()

    def _service(self) -> ServiceUnderTest:
        if self._shared is None:
            directory = Path(tempfile.mkdtemp(dir=self._directory))
            servers = self._service_stack.enter_context(self._given.for_one_service()) if self._given else {}
            service = service_under_test(directory / "state", environment=servers)
            self._shared = self._service_stack.enter_context(service)
        return self._shared

    def renew(self) -> list[Row]:
        """Stop the shared service, if it runs, as Ctrl-C does; its row tells whether a process is left."""
        if self._shared is None:
            return []
        state_dir = self._shared.state_dir
        self._shared = None
        self._service_stack.close()
        return [nothing_left(state_dir, "the shared service")]


def nothing_left(directory: Path, whose: str) -> Row:
    """Make the table row, which holds if no process of this directory is left after Ctrl-C."""
    until(lambda: not left_behind(directory), STOPPED_WITHIN_S)
    left = left_behind(directory)
    return Row(f"{whose}: processes left after Ctrl-C", "0", f"{len(left)} {left[:3] or ''}".strip(), not left)


def _healthy(service: ServiceUnderTest) -> bool:
    """Whether all processes live and ordinary requests are answered soon."""
    service.thaw()
    with suppress(Exception), client_of(service) as client:
        client.submit_all(bodies(4, seed=25))
        return len(client.accepted) == 4 and service.answered_within(HEALTHY_WITHIN_S) is not None
    return False
