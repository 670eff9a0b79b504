"""JSON from clients, bounded in its values and its depth, and JSON to them, which no program splits at line ends.

JSON may hold U+0085, U+2028 and U+2029 as they are, but Python's `str.splitlines` and `httpx.iter_lines` split there,
which would break an event of a stream or a line of a result file in two.
"""

import re
from secrets import token_hex
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticOmit, core_schema, from_json, to_json

LINE_ENDS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}
# Bounds of one body or line, by its commas and colons outside of texts. A body at these bounds takes 0.3 s to be parsed
# and validated; prompts of 131,072 token ids and answers with log probabilities stay below them. Not tuned otherwise.
MOST_VALUES = 2**18
MOST_MEMBERS = 2**16
# A text that does not end is matched, too: otherwise each quote within it would be tried as a beginning.
TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)


def bounded_json(data: bytes) -> Any:
    """Parses JSON; raises ValueError for a syntax error, with its place, for too many values and beyond depth 200."""
    if data.count(b",") >= MOST_VALUES or data.count(b":") > MOST_MEMBERS:
        bare = TEXTS.sub(b"", data, count=MOST_VALUES + MOST_MEMBERS)
        if bare.count(b",") >= MOST_VALUES or bare.count(b":") > MOST_MEMBERS:
            raise ValueError(f"it has more than {MOST_VALUES:,} values or {MOST_MEMBERS:,} members of objects")
    return from_json(data, allow_inf_nan=False)


class StoredJson:
    """JSON that goes into answers as it is stored: making it from objects takes 0.4 s for 1,024 tokens' probabilities.

    A field's type is `list[...] | StoredJson`, of which the API's description shows the list alone.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        raise PydanticOmit


def one_line_json(value: Any) -> bytes:
    """Returns the value as JSON with the characters of LINE_ENDS escaped, which can only be in its strings."""
    mark, stored = token_hex(16), list[StoredJson]()  # no text holds the mark, because it is drawn at random

    def marked(found: StoredJson) -> str:
        stored.append(found)
        return mark

    first, *parts = to_json(value, fallback=marked).split(f'"{mark}"'.encode())
    data = b"".join((first, *(one.text.encode() + part for one, part in zip(stored, parts, strict=True))))
    for character, escaped in LINE_ENDS.items():
        data = data.replace(character.encode(), escaped)
    return data
