"""JSON from outside: what is refused before any field is looked at. And one line of JSON stays one for every reader."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from protocol.json_bytes import MOST_MEMBERS, MOST_VALUES, StoredJson, bounded_json, one_line_json
from protocol.responses.output_items import OutputText


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
        bounded_json(body)


@settings(deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=20)
)
def test_what_is_written_is_read_again(value: object) -> None:
    assert bounded_json(to_json(value)) == value


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_value_error(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        bounded_json(body)


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


@pytest.mark.parametrize("unit", [b'\\"', b'"', b"\\", b'"\\', b'\\\\"', b'"a\\"'])
def test_texts_that_do_not_end_are_bounded_in_time_that_grows_with_their_length(unit: bytes) -> None:
    """A pattern that tries each quote of such a text took 7 s of CPU for 32,000 of them, 10 minutes for 300,000."""
    began = time.process_time()
    with pytest.raises(ValueError, match="it has more than"):
        bounded_json(b"[" + b"1," * MOST_VALUES + b'"' + unit * 300_000)
    assert time.process_time() - began < 5  # 0.01 s


@pytest.mark.parametrize(
    "text", ["," * 2 * MOST_VALUES, ":" * 2 * MOST_MEMBERS, '\\",' * MOST_VALUES, '"' * MOST_VALUES]
)
def test_commas_and_colons_of_a_text_are_no_values(text: str) -> None:
    assert bounded_json(to_json([text])) == [text]


TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e\r\n\\u")
)


@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT)))
def test_no_reader_splits_a_line_of_json(value: dict[str, object]) -> None:
    line = one_line_json(value).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line) == value


def test_stored_json_is_in_its_place_as_it_is_wherever_it_stands() -> None:
    content = OutputText(text='"[1]"', logprobs=StoredJson('[{"token": "\u2028"}]'))
    shown = one_line_json({"first": content, "second": [StoredJson("[2]"), StoredJson("[]")]})
    assert shown.isascii()
    assert json.loads(shown) == {
        "first": {"type": "output_text", "text": '"[1]"', "annotations": [], "logprobs": [{"token": "\u2028"}]},
        "second": [[2], []],
    }


def test_the_api_describes_a_list_where_stored_json_may_stand() -> None:
    described = OutputText.model_json_schema()["properties"]["logprobs"]
    assert (described["type"], described["items"]) == ("array", {"$ref": "#/$defs/ChosenToken"})
