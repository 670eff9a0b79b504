"""CSV (RFC 4180) that spreadsheets open safely: none computes what a model or a client wrote as a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

# The characters with which a cell is a formula to some spreadsheet, also in their full width (OWASP, "CSV Injection").
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
SIGNED_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Returns the rows as CSV; a text that a spreadsheet would compute begins with an apostrophe."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\r\n").writerows(map(shown_as_text, row) for row in rows)
    return table.getvalue()


def shown_as_text(cell: object) -> object:
    """Puts an apostrophe before a text that begins as a formula does, such as a list of dashes; not before a number."""
    computed = isinstance(cell, str) and cell.startswith(FORMULA_STARTS) and not SIGNED_NUMBER.fullmatch(cell)
    return f"'{cell}" if computed else cell
