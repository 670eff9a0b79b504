"""Writes and reads frozen values that a table's column keeps whole, as JSON, whatever their fields are.

A reader ignores fields that it does not know and gives missing fields their defaults. So processes of neighbouring
versions read each other's values, and a new field needs no migration.
"""

from collections.abc import Hashable
from functools import cache, lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


def to_json(value: object) -> str:
    """Returns the JSON of a dataclass and of the dataclasses within it."""
    return _adapter(cast(Hashable, type(value))).dump_json(value).decode()


def from_json(kind: type[T], stored: str) -> T:
    """Returns the value of this kind; equal JSON gives the same object. Raises pydantic's ValidationError."""
    value: T = _read(cast(Hashable, kind), stored)  # mypy does not know that a class is hashable
    return value


@lru_cache(maxsize=2048)  # more than any fleet's facts and reports, which are all read again between two heartbeats
def _read(kind: Hashable, stored: str) -> Any:
    return _adapter(kind).validate_json(stored)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
