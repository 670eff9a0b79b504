"""CSV (RFC 4180) that spreadsheets open safely: what a model or a client wrote is never computed as a formula."""

import re
from collections.abc import Iterable, Sequence

# A cell that begins with one of these is a formula to some spreadsheet, also in full width (OWASP, "CSV Injection").
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
QUOTED = re.compile(r'[",;\t\r\n|]')  # some spreadsheets take a semicolon, a tab or a bar as the separator
SIGNED_NUMBER = re.compile(r"[+-](\d++\.?\d*+|\.\d++)(e[+-]?\d++)?", re.ASCII | re.IGNORECASE)


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Returns the rows as CSV; a text that a spreadsheet would compute begins with an apostrophe."""
    return "".join(",".join(map(_field, row)) + "\r\n" for row in rows)


def shown_as_text(cell: object) -> object:
    """Puts an apostrophe before a text that begins as a formula does, such as a list of dashes; not before a number."""
    computed = isinstance(cell, str) and cell.startswith(FORMULA_STARTS) and not SIGNED_NUMBER.fullmatch(cell)
    return f"'{cell}" if computed else cell


def _field(cell: object) -> str:
    text = "" if cell is None else str(shown_as_text(cell))
    return '"{}"'.format(text.replace('"', '""')) if QUOTED.search(text) else text
