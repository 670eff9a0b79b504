"""The service's promises that need a whole `magnus up`, broken from outside while real clients call it over HTTP.

`make chaos` tries all of them in their long form, an hour and twice half an hour at load, and writes each row into
chaos.json and chaos.md: the promise, its bound, what was measured. `make test-long` tries two in the short form.
docs/results/chaos.md names the tests of the other promises, which need no whole service.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.harness import Results, Row, markdown_table, until
from settings import PREFIX
from tests.chaos import host_promises, process_promises, server_promises, storage_promises
from tests.chaos.promised_service import PromisedService, left_behind, promised_service
from tests.chaos.recording_client import bodies, client_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

# Promises that break a shared service, which is replaced if it does not recover, and those with services of their own.
SHARED: dict[str, Callable[..., Iterator[Row]]] = {
    "rescue": process_promises.rescues,
    "rate": process_promises.kill_rate,
    "rolling": process_promises.rolling_restart,
    "broker": server_promises.broker,
    "postgres": server_promises.postgres,
    "leaders": host_promises.leaders,
    "freezes": process_promises.freezes,
    "cut": server_promises.cut_connections,
}
OWN: dict[str, Callable[..., Iterator[Row]]] = {
    "kills": process_promises.kills,
    "clocks": host_promises.clocks,
    "disk": storage_promises.disk_full,
    "refused": storage_promises.refused_starts,
    "leaving": process_promises.comings_and_goings,
    "soak": process_promises.soak,
}
# What --chaos chooses: the promises, and whether in the long form.
FORMS = {"few": (("rescue", "kills"), False), "short": ((*SHARED, *OWN), False), "long": ((*SHARED, *OWN), True)}
COLUMNS = {"promise": "promise", "bound": "bound", "measured": "measured", "holds": "ok"}
HEALTHY_WITHIN_S = 45.0  # after a promise; otherwise a new service replaces the shared one
STOPPED_WITHIN_S = 5.0  # after `magnus up` has ended: killed processes take a moment to leave the process table


class Promises:
    """Tries promises in a temporary directory, and writes the table of all rows so far."""

    def __init__(self, directory: Path, long: bool) -> None:
        self._directory, self._long, self._service_stack = directory, long, ExitStack()
        self._shared: PromisedService | None = None
        self._rows: list[Row] = []
        self._results = Results.at(Path("chaos.json") if long else None)

    def broken(self, name: str) -> list[str]:
        """Try a promise; returns the rows that do not hold."""
        rows = list(self._of_own(name) if name in OWN else self._of_shared(name))
        self._rows += rows
        if self._results.file:
            lines = [asdict(row) for row in self._rows]
            self._results.write(lines)
            self._results.file.with_suffix(".md").write_text("\n".join(markdown_table(lines, COLUMNS)) + "\n")
        return [f"{row.promise}: {row.bound}; measured: {row.measured}" for row in rows if not row.ok]

    def _of_own(self, name: str) -> Iterator[Row]:
        yield from self.renew()  # stops the shared service: two would share the cores
        directory = self._directory / name
        directory.mkdir()
        yield from OWN[name](directory, self._long)
        yield nothing_left(directory, name)

    def _of_shared(self, name: str) -> Iterator[Row]:
        if self._shared is None:
            state_dir = Path(tempfile.mkdtemp(dir=self._directory)) / "state"
            self._shared = self._service_stack.enter_context(promised_service(state_dir))
        service, healthy = self._shared, False
        try:
            yield from SHARED[name](service, self._long)
            healthy = _healthy(service)
        finally:
            if not healthy:
                self._rows += self.renew()

    def renew(self) -> list[Row]:
        """Stop the shared service, if it runs, as Ctrl-C does; its row tells whether a process is left."""
        if self._shared is None:
            return []
        state_dir, self._shared = self._shared.state_dir, None
        self._service_stack.close()
        return [nothing_left(state_dir, "the shared service")]


def nothing_left(directory: Path, whose: str) -> Row:
    """Make the table row, which holds if no process of this directory is left after Ctrl-C."""
    until(lambda: not left_behind(directory), STOPPED_WITHIN_S)
    left = left_behind(directory)
    return Row(f"{whose}: processes left after Ctrl-C", "0", f"{len(left)} {left[:3] or ''}".strip(), not left)


def _healthy(service: PromisedService) -> bool:
    """Whether all processes live and ordinary requests are answered soon."""
    service.thaw()
    with suppress(Exception), client_of(service) as client:
        client.submit_all(bodies(4, seed=25))
        return len(client.accepted) == 4 and service.answered_within(HEALTHY_WITHIN_S) is not None
    return False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try the promises of the chosen form."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", FORMS[metafunc.config.getoption("--chaos")][0])


@pytest.fixture(scope="module")
def promises(pytestconfig: pytest.Config) -> Iterator[Promises]:
    """One set, so that promises share a service; settings of this environment must not replace its defaults."""
    with ExitStack() as stack:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            stack.callback(os.environ.__setitem__, name, os.environ.pop(name))
        temporary = tempfile.TemporaryDirectory(prefix="magnus-chaos-", ignore_cleanup_errors=True)
        made = Promises(Path(stack.enter_context(temporary)), FORMS[pytestconfig.getoption("--chaos")][1])
        stack.callback(made.renew)
        yield made


def test_the_promise_holds(promises: Promises, name: str):
    broken = promises.broken(name)
    assert not broken, "\n".join(broken)


def test_nothing_is_left_running_after_ctrl_c(promises: Promises):
    assert all(row.ok for row in promises.renew())
