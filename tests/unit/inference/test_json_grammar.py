"""Checks of JSON formats: what no engine could keep to, and what nobody could compile in time, each told by name."""

import json

import pytest
from llguidance import LLTokenizer

from inference.engine_requests import JsonFormat
from inference.json_grammar import FormatChecks, FormatVerdict, compiled
from request_body import AnswerForm
from settings import BUNDLED_MODEL

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


@pytest.mark.parametrize("grammar", ['start: "yes" | "no" /[a-c]{3}/', 'root ::= "yes" | "no" [a-c] [a-c] [a-c]'])
def test_a_grammar_of_lark_or_gbnf_is_kept_to(grammar):
    assert CHECKS.problem_of(JsonFormat(grammar=grammar)) is None
    matcher = compiled(JsonFormat(grammar=grammar), LLTokenizer("byte"))
    assert [matcher.deep_copy().try_consume_tokens(list(text)) for text in (b"yes", b"noabc", b"nod")] == [3, 5, 2]


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("no grammar", "neither Lark nor GBNF"),
        ('root ::= "a" other', "neither Lark nor GBNF"),
        ("root ::= " + "(" * 50_000, "neither Lark nor GBNF"),
        ("start: other", "other"),
        ('start: %json {"type": "object"}', "%json"),
        ("\n" * 60_000, "CPU time"),
    ],
)
def test_a_grammar_that_no_answer_could_be_held_to_is_told_so(grammar, why):
    assert why in str(CHECKS.problem_of(JsonFormat(grammar=grammar)))


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
    "each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
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
    checks._verdicts[JsonFormat("{}")] = FormatVerdict("known")
    assert checks.problem_of(JsonFormat("{}")) == "known"


BY_TOKENS = FormatChecks((BUNDLED_MODEL / "tokenizer.json").read_text(), 1280, 1)


@pytest.mark.parametrize(
    ("format", "tokens"),
    [
        (JsonFormat(), 2),
        (JsonFormat(pattern="yes|no"), 1),
        (JsonFormat('{"enum": ["a long value", "b"]}'), 3),
        (JsonFormat('{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}'), 9),
        (JsonFormat(pattern="(.*a){20}b"), None),  # a walk does not find its way through it
        (JsonFormat('{"type": "foo"}'), None),
    ],
)
def test_the_shortest_answer_of_a_format_is_counted_in_the_models_tokens(format, tokens):
    assert BY_TOKENS.shortest_tokens(format) == tokens


def test_a_servers_tokens_are_unknown_so_that_its_shortest_answer_is_too():
    assert CHECKS.shortest_tokens(JsonFormat()) is None


SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)
THINKS = AnswerForm(opening="<think>", closing="</think>")
OPENED = THINKS.model_copy(update={"opened": True})
CHANNELS = AnswerForm(channels=True)
ANALYSIS = "<|channel|>analysis<|message|>It<|end|>"


@pytest.mark.parametrize(
    ("form", "answer", "held"),
    [
        (THINKS, '<think>{ "b</think>\n\n{"a": 1}', True),
        (THINKS, '{"a": 1}', True),
        (THINKS, 'It is {"a": 1}', False),
        (OPENED, 'It is</think>{"a": 1}', True),
        (OPENED, 'It is</think>1 {"a": 1}', False),
        (
            CHANNELS,
            '<|channel|>analysis<|message|>It<|end|><|start|>assistant<|channel|>final<|message|>{"a": 1}',
            True,
        ),
        (CHANNELS, '<|channel|>final <|constrain|>json<|message|>{"a": 1}', True),
        (CHANNELS, '{"a": 1}', False),
    ],
)
def test_a_format_begins_behind_the_thinking(form, answer, held):
    matcher = compiled(JsonFormat(SCHEMA, answer_form=form), LLTokenizer("byte"))
    ids = list(answer.encode())
    assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) is held


def test_a_pattern_begins_behind_the_thinking_too_and_tags_may_be_special_tokens():
    vocabulary = LLTokenizer((BUNDLED_MODEL / "tokenizer.json").read_text(), n_vocab=1280, eos_token=1)
    form = AnswerForm(opening="<user>", closing="<assistant>")
    matcher = compiled(JsonFormat(pattern="a/b", answer_form=form), vocabulary)
    ids = [token for text in ("<user>", "cat", "<assistant>", "a/b") for token in vocabulary.tokenize_str(text)]
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()
