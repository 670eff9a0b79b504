"""What all benchmark programs share: the option `--json`, tables, percentiles, polling."""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.table import Table

Json = dict[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])
Column = str | Callable[[Json], object]  # "key", "key.inner key:format", or a function of the row

SECRET_OPTIONS = ("--api-key", "--dashboard-password", "--database-url", "--postgres-url", "--redis-url")
FOLDERS = re.compile(r"(?:^|(?<==))/.*/")  # the folders of an absolute path, also in `--option=PATH`
HELP = "Write the figures to this file, or into this folder as DATE_COMMIT.json, with commit, date, machine, command."


@dataclass(frozen=True)
class Row:
    """One line of a table: what is promised, its bound, what was measured, and whether the bound held."""

    promise: str
    bound: str
    measured: str
    ok: bool


@dataclass(frozen=True)
class Results:
    """The file into which a program writes its figures; nothing is written if it is None."""

    file: Path | None
    origin: Json

    @classmethod
    def at(cls, path: Path | None) -> "Results":
        """Return results for this file; a path without the ending `.json` is a folder for a new DATE_COMMIT.json."""
        made = origin()
        if path is None or path.suffix == ".json":
            return cls(path, made)
        name = f"{made['date']}_{made['commit']}"
        files = (path / (f"{name}.json" if number == 1 else f"{name}_{number}.json") for number in count(1))
        return cls(next(file for file in files if not file.exists()), made)

    def write(self, figures: object) -> None:
        """Write the figures with their origin, in place of what an earlier call wrote."""
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps({**self.origin, "figures": figures}, indent=1, ensure_ascii=False, default=float)
            self.file.write_text(content + "\n", encoding="utf-8")

    def earlier(self) -> Any:
        """Return the figures that the file already has, or None if there is no such file."""
        if self.file is None or not self.file.exists():
            return None
        return json.loads(self.file.read_text(encoding="utf-8"))["figures"]


def json_option(command: Command) -> Command:
    """Give a command the option `--json`; its function gets a `Results` as `results`."""
    kind = click.Path(path_type=Path)
    option = click.option("--json", "results", type=kind, callback=lambda *given: Results.at(given[-1]), help=HELP)
    return option(command)


def origin() -> Json:
    """Return commit, date, machine and the command, from which keys, addresses and folders of paths are removed."""
    root = Path(__file__).parents[1]
    commit = "unknown"
    if shutil.which("git"):
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        commit = git.stdout.strip() or commit
    program = getattr(sys.modules["__main__"], "__spec__", None)
    name = program.name.removesuffix(".__main__") if program else Path(sys.argv[0]).stem
    arguments = list(sys.argv[1:])
    for option in SECRET_OPTIONS:
        arguments = [
            "…" if before == option else f"{option}=…" if argument.startswith(f"{option}=") else argument
            for before, argument in zip(["", *arguments], arguments, strict=False)
        ]
    # Absolute folders mean nothing on another machine.
    arguments = [FOLDERS.sub("", argument) for argument in arguments]
    return {
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {processor()}",
        "command": shlex.join(["python", "-m", name, *arguments]),
    }


def processor() -> str:
    """Return the name of the CPU, or the architecture on systems without /proc."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_table(rows: Iterable[Json], columns: Mapping[str, Column] | Sequence[str], title: str | None = None) -> None:
    """Print a line for each of `rows`; numbers are right-aligned, and a missing value is a dash."""
    named = columns if isinstance(columns, Mapping) else {name.replace("_", " "): name for name in columns}
    cells = [[cell(row, column) for column in named.values()] for row in rows]
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(named):
        texts = any(row[number][:1].isalpha() for row in cells)
        table.add_column(name, justify="left" if texts else "right")
    for row in cells:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200).print(table, markup=False)


def markdown_table(rows: Iterable[Json], columns: Mapping[str, Column]) -> list[str]:
    """Return the lines of a table with a row for each of `rows`."""
    cells = [[cell(row, column) for column in columns.values()] for row in rows]
    return [f"| {' | '.join(line)} |" for line in ([*columns], ["---"] * len(columns), *cells)]


def cell(row: Json, column: Column) -> str:
    """Format one cell: the value at the column's path, in the column's format."""
    if callable(column):
        return str(column(row))
    path, _, form = column.partition(":")
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return "–"
    return f"{value:{form or '.4g'}}" if isinstance(value, float) or form else str(value)


def percentile(values: Sequence[float], share: float, method: Any = "linear") -> float | None:
    """Return this quantile of the values (0.95: the 95th percentile), by default interpolated; None without values."""
    return float(np.quantile(values, share, method=method)) if len(values) else None


def spread(values: Sequence[float], digits: int | None = None) -> dict[str, float | None]:
    """Compute mean, 50th, 95th and 99th percentile and maximum; each is None without values."""
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    found = {"mean": float(np.mean(values)) if len(values) else None}
    found |= {name: percentile(values, share) for name, share in shares.items()}
    return {name: value if value is None or digits is None else round(value, digits) for name, value in found.items()}


def until(condition: Callable[[], object], seconds: float, every_s: float = 0.1) -> bool:
    """Wait until the condition is true; returns whether it became true within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


@contextmanager
def in_thread(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run `work` in a thread beside the context; at the end the event that it got is set, and its end is awaited."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(line: str) -> None:
    """Report progress on standard error."""
    click.echo(line, err=True)
