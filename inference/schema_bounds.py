"""Names the bound that a JSON schema exceeds, before it is compiled; compiling it finds other expensive schemas."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

MOST_STEPS = 10_000  # of multipleOf


def _steps(multiple: float) -> int:
    """Returns the states of an automaton for these multiples: 25 for 0.25, 100 for 100; at most MOST_STEPS + 1."""
    if not abs(multiple) <= MOST_STEPS:  # also true for NaN
        return MOST_STEPS + 1
    digits = Decimal(str(multiple)).normalize().as_tuple().digits
    return min(MOST_STEPS + 1, max(math.ceil(abs(multiple)), int("".join(map(str, digits)))))


# For each keyword the type of its value, the function that counts its parts, the most parts, and their name in errors.
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
