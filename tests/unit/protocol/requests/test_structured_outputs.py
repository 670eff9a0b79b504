"""The formats that vLLM's clients ask for, each as it is stored for the engine."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inference.engine_requests import JsonFormat
from inference.json_grammar import FormatChecks
from protocol.client_errors import InvalidRequest
from protocol.requests.structured_outputs import StructuredFields, _one_of
from request_body import StoredFormat

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
OF_SCHEMA = StoredFormat.model_validate({"type": "json_schema", "name": "answer", "schema": SCHEMA})

GBNF = 'root ::= "yes" | "no"'


def asked(**fields: Any) -> tuple[str, StoredFormat | None]:
    return StructuredFields.model_validate(fields).format_beside("response_format", None)


@pytest.mark.parametrize(
    ("fields", "name", "stored"),
    [
        ({}, "response_format", None),
        ({"structured_outputs": None}, "response_format", None),
        ({"structured_outputs": {"json": SCHEMA, "grammar": None}}, "structured_outputs.json", OF_SCHEMA),
        ({"guided_json": SCHEMA}, "guided_json", OF_SCHEMA),
        (
            {"guided_json": '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'},
            "guided_json",
            OF_SCHEMA,
        ),
        ({"guided_regex": "a+"}, "guided_regex", StoredFormat(type="regex", pattern="a+")),
        (
            {"structured_outputs": {"choice": ["yes", "no."]}},
            "structured_outputs.choice",
            StoredFormat(type="regex", pattern=r"(yes|no\.)"),
        ),
        ({"guided_grammar": GBNF}, "guided_grammar", StoredFormat(type="grammar", grammar=GBNF)),
        (
            {"structured_outputs": {"grammar": GBNF}},
            "structured_outputs.grammar",
            StoredFormat(type="grammar", grammar=GBNF),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            "structured_outputs.json_object",
            StoredFormat(type="json_object"),
        ),
    ],
)
def test_each_way_to_ask_for_a_format_is_stored_alike(
    fields: dict[str, Any], name: str, stored: StoredFormat | None
) -> None:
    assert asked(**fields) == (name, stored)


def test_several_formats_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(guided_regex="a", structured_outputs={"regex": "b"})
    assert caught.value.param == "structured_outputs.regex"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"grammar": ""}},
        {"guided_grammar": "x" * 65_537},
        {"guided_choice": []},
        {"guided_choice": [1]},
        {"guided_regex": "a" * 4097},
        {"guided_json": "[1]"},
        {"guided_json": "{"},
        {"guided_decoding_backend": "x"},
    ],
)
def test_what_no_engine_holds_an_answer_to_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        asked(**fields)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1), min_size=1, max_size=5))
def test_choices_match_themselves_and_nothing_else(choices: list[str]) -> None:
    stored = _one_of(choices, "choice")
    assert stored is not None
    assert stored.pattern is not None
    for text in (*choices, "other text"):
        assert bool(re.fullmatch(stored.pattern, text)) is (text in choices)


def test_choices_of_every_character_can_be_compiled_for_our_engine() -> None:
    stored = _one_of(["".join(map(chr, range(1, 127))), "Köln 🦊"], "choice")
    assert stored is not None
    assert FormatChecks().problem_of(JsonFormat(pattern=stored.pattern)) is None
    assert FormatChecks().problem_of(JsonFormat(pattern="(a")) is not None
