"""What a figure gives: rows with their bounds, and everything that was measured."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.promise_rows import Row


@dataclass
class MeasuredFigure:
    """Rows of the table, and the figures behind them for the JSON."""

    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def below(self, what: str, bound: float, measured: float, unit: str, more: str = "") -> None:
        """A row that holds if `measured` is at most the bound."""
        self.holds(what, f"at most {bound:g} {unit}", f"{measured:.3g} {unit}{more}", measured <= bound)

    def holds(self, what: str, bound: str, measured: str, ok: bool) -> None:
        """A row that holds if `ok`."""
        self.rows.append(Row(what, bound, measured, bool(ok)))  # numpy's truth is none of JSON's
