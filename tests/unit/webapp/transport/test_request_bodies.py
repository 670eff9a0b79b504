"""JSON from outside: what is refused before any field is looked at."""

import contextlib

import pytest
from apiflask import APIFlask
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from webapp.transport.request_bodies import StrictJson

json = StrictJson(APIFlask(__name__))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        rb'"\ud800"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\x00"',
        b"[" * 201,
        b"1,2",
    ],
    ids=["empty", "cut", "NaN", "infinity", "surrogate", "Latin-1", "CESU", "control", "deep", "two values"],
)
def test_what_is_no_strict_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="at line"):
        json.loads(body)


@settings(deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=20)
)
def test_what_is_written_is_read_again(value: object) -> None:
    assert json.loads(to_json(value)) == value


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_value_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        json.loads(body)
