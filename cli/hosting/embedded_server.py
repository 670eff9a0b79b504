"""What the embedded Postgres and the embedded broker share: a program with a URL, run from a wheel's files."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.hosting.child_process import ChildProgram, start, stop
from cli.hosting.readiness import await_ready


@dataclass(frozen=True)
class EmbeddedServer:
    """A server to run and the URL that its clients use."""

    program: ChildProgram
    url: str


@contextmanager
def running_server(server: EmbeddedServer, log: Path) -> Iterator[str]:
    """Start the server and yield its URL once it is ready; stop it at the end, also after an error."""
    process = start(server.program, log)
    try:
        await_ready(server.program, process, log)
        yield server.url
    finally:
        stop((server.program, process))


def wheel_directory(package: str) -> Path:
    """The directory of an installed package, found without importing it: these packages do work (and warn) at import.

    Raises ModuleNotFoundError.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])
