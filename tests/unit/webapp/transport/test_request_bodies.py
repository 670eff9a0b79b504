"""JSON from outside: what is refused before any field is looked at."""

import contextlib

import pytest
from apiflask import APIFlask
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from webapp.transport.request_bodies import MOST_MEMBERS, MOST_VALUES, StrictJson, bounded_json

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


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"1," * MOST_VALUES + b"1]",
        b"[" + b'"",' * MOST_VALUES + b"1]",
        b"[" + b"{}," * MOST_VALUES + b"1]",
        b"{" + b'"a":1,' * MOST_MEMBERS + b'"a":1}',
        b'["' + b'",",",","' * MOST_VALUES + b'"]',
    ],
    ids=["numbers", "texts", "objects", "members", "texts of commas"],
)
def test_more_values_than_any_request_has_are_refused_before_they_are_parsed(body: bytes) -> None:
    with pytest.raises(ValueError, match="it has more than"):
        bounded_json(body)


@pytest.mark.parametrize(
    "text", ["," * 2 * MOST_VALUES, ":" * 2 * MOST_MEMBERS, '\\",' * MOST_VALUES, '"' * MOST_VALUES]
)
def test_commas_and_colons_of_a_text_are_no_values(text: str) -> None:
    assert bounded_json(to_json([text])) == [text]
