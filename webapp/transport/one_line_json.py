"""JSON without the characters at which some programs end a line.

JSON may hold U+0085, U+2028 and U+2029 as they are, but Python's `str.splitlines` and `httpx.iter_lines` split there,
which would break an event of a stream or a line of a result file in two.
"""

from typing import Any

from pydantic_core import to_json

LINE_ENDS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}


def one_line_json(value: Any) -> bytes:
    """Returns the value as JSON, with these characters escaped; they can only be in its strings."""
    data = to_json(value)
    for character, escaped in LINE_ENDS.items():
        data = data.replace(character.encode(), escaped)
    return data
