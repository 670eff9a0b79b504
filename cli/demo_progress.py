"""The demo's progress bars: requests sent, requests answered, and the service's figures."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from cli.api_client import Json


class Progress:
    """Two bars and the service's figures, redrawn in a terminal; a pipe or a log file gets only the last state."""

    def __init__(self, console: Console, requests: int) -> None:
        columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, TextColumn("{task.fields[note]}"), console=console)
        self._sent = self._bars.add_task("sent", total=requests, note="")
        self._answered = self._bars.add_task("answered", total=requests, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def show(self, sent: int, stats: Json) -> None:
        """Redraw with the number of requests sent and the service's figures since the start."""
        answered = max(0, sent - stats["queued"] - stats["in_progress"])
        size = stats["mean_batch_size"]
        note = f"{stats['batches']} batches" + (f" of {size:.1f}" if size else "")
        note += f", {stats['queued']} waiting, {stats['in_progress']} in batches, {stats['workers']} workers"
        self._bars.update(self._sent, completed=sent)
        self._bars.update(self._answered, completed=answered, note=note)
