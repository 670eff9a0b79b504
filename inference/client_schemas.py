"""Checks a client's JSON schema against bounds before it is compiled, and closes its objects.

Schemas that are expensive in other ways are found by compiling them. Objects are closed because a model that may invent
properties goes on inventing them until its answer reaches the limit.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

MOST_STEPS = 10_000  # the most states that a multipleOf may need, as `_steps` counts them
# The value of a keyword in BY_NAME is an object of schemas; the value of one in IN_PLACE is a schema or a list of them.
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
IN_PLACE = ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties")
# Keywords that describe the properties of an object. A schema with two of them describes its object in several parts.
DESCRIBING = {"properties", "anyOf", "oneOf", "allOf", "$ref"}
SAYING_OTHERWISE = ("additionalProperties", "unevaluatedProperties", "minProperties")


def _steps(multiple: float) -> int:
    """Returns the states of an automaton for these multiples (25 for 0.25, 100 for 100), at most MOST_STEPS + 1."""
    if not abs(multiple) <= MOST_STEPS:  # also true for NaN
        return MOST_STEPS + 1
    digits = Decimal(str(multiple)).normalize().as_tuple().digits
    return min(MOST_STEPS + 1, max(math.ceil(abs(multiple)), int("".join(map(str, digits)))))


# For each keyword: the type of its value, the function that counts its parts, the most parts, and their name in errors.
# 500 optional properties take three quarters of the memory that a row's grammar may have; 32 patterns of
# properties, and multiples of 10,000, take some 60 ms. Not tuned otherwise.
BOUNDS: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any], int], int, str]] = {
    "properties": (dict, len, 500, "properties of one object"),
    "patternProperties": (dict, len, 32, "patterns of properties"),
    "enum": (list, len, 5000, "values of one enum"),
    "anyOf": (list, len, 500, "alternatives of one anyOf"),
    "allOf": (list, len, 100, "parts of one allOf"),
    "multipleOf": ((int, float), _steps, MOST_STEPS, "steps of multipleOf, which are its digits as an integer"),
    "pattern": (str, len, 4000, "characters of one pattern"),
}


def exceeded_bound(schema: Any) -> str | None:
    """Returns which bound a schema exceeds, None if it exceeds none."""
    level = [schema]
    while level:
        for value in level:
            for keyword, found in value.items() if isinstance(value, dict) else ():
                kind, number_of, most, name = BOUNDS.get(keyword, (type(None), len, 0, ""))
                if isinstance(found, kind) and not isinstance(found, bool | None) and number_of(found) > most:
                    return f"it has more than {most:,} {name}"
        level = [part for value in level for part in _parts(value)]
    return None


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def close_objects(schema: Any) -> None:
    """Sets `additionalProperties: false` in each object that names its properties and says nothing about others.

    Changes nothing if any object is described in several parts, because closed parts would exclude each other.
    """
    schemas = list(_schemas_in(schema))
    if not any(map(_is_in_parts, schemas)):
        for one in filter(_is_open, schemas):
            one["additionalProperties"] = False


def _schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        parts = value if isinstance(value, list) else [value]
        if keyword in BY_NAME:
            parts = list(value.values()) if isinstance(value, dict) else []
        for part in parts if keyword in BY_NAME or keyword in IN_PLACE else ():
            yield from _schemas_in(part)


def _is_in_parts(schema: dict[str, Any]) -> bool:
    all_of = schema.get("allOf")
    return len(schema.keys() & DESCRIBING) > 1 or (isinstance(all_of, list) and len(all_of) > 1)


def _is_open(schema: dict[str, Any]) -> bool:
    properties, required = schema.get("properties"), schema.get("required")
    if not properties or not isinstance(properties, dict) or not schema.keys().isdisjoint(SAYING_OTHERWISE):
        return False
    return all(str(name) in properties for name in required) if isinstance(required, list) else True
