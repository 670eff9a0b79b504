"""Checks of JSON formats: what no engine could keep to, and what nobody could compile in time, each told by name."""

import json

import pytest

from inference.json_grammar import FormatChecks
from inference.sequences import JsonFormat

CHECKS = FormatChecks()
REFUSED = ['{"type": "foo"}', '{"not": {"type": "string"}}', '{"type": "string", "pattern": "(?=x)y"}']


@pytest.mark.parametrize(
    "schema", [*REFUSED, "[1]", "true", '{"$ref": "http://somewhere/else"}', '{"format": "x", "type": "string"}']
)
def test_a_schema_that_no_engine_could_keep_to_has_a_problem_that_says_why(schema):
    assert CHECKS.problem_of(JsonFormat(schema))


def test_the_style_of_a_schema_is_ours_whatever_it_says():
    asked = '{"type": "object", "x-guidance": {"lenient": true}, "properties": {"a": {"not": {}}}}'
    assert "not" in str(CHECKS.problem_of(JsonFormat(asked)))
    assert CHECKS.problem_of(JsonFormat()) is None


# Each of these holds a thread for seconds or minutes if nothing bounds it.
TOO_EXPENSIVE = {
    "multiples of each of several": {"allOf": [{"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]},
    "patterns at once": {"allOf": [{"type": "string", "pattern": f".*{one}.*"} for one in "abcdefghijklmnopqrst"]},
}


@pytest.mark.parametrize("schema", TOO_EXPENSIVE.values(), ids=TOO_EXPENSIVE)
def test_a_schema_that_takes_too_long_is_told_so(schema):
    assert "CPU time" in str(CHECKS.problem_of(JsonFormat(json.dumps(schema))))


WITHOUT_ANSWER = {
    "itself": {"$ref": "#"},
    "each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "objects without end": {
        "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
        "$ref": "#/$defs/a",
    },
}


@pytest.mark.parametrize("schema", WITHOUT_ANSWER.values(), ids=WITHOUT_ANSWER)
def test_a_schema_that_no_finite_answer_matches_is_told_so(schema):
    assert CHECKS.problem_of(JsonFormat(json.dumps(schema)))


def test_an_object_with_more_keys_than_a_grammar_can_hold_is_told_so():
    keys = {"type": "object", "properties": {f"key{number}": {"type": "string"} for number in range(1500)}}
    assert CHECKS.problem_of(JsonFormat(json.dumps(keys)))


def test_a_verdict_is_remembered():
    checks = FormatChecks()
    checks._verdicts[JsonFormat("{}")] = "known"
    assert checks.problem_of(JsonFormat("{}")) == "known"
