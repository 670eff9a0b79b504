"""A model may not invent properties where a schema only forgot to say so, and may where the schema means it."""

import copy
import json
from typing import Any

import jsonschema_rs
import pytest

from inference.client_schemas import close_objects
from inference.engine_requests import JsonFormat
from inference.json_grammar import FormatChecks
from inference.tool_calls import required_format
from request_body import RequestBody, StoredFormat, StoredTool, StoredToolChoice

A, B = {"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}
OBJECT = {"type": "object", **A, "required": ["a"]}
GOOD, INVENTED = {"a": "x"}, {"a": "x", "b": "y"}


def closed(schema: Any) -> Any:
    changed = copy.deepcopy(schema)
    close_objects(changed)
    return changed


# schemas, each with a value that it means and one with an invented property
@pytest.mark.parametrize(
    ("schema", "meant", "invented"),
    [
        (OBJECT, GOOD, INVENTED),
        (A, GOOD, INVENTED),
        ({"type": ["object", "null"], **A}, GOOD, INVENTED),
        ({"type": "object", "properties": {"o": OBJECT}}, {"o": GOOD}, {"o": INVENTED}),
        ({"type": "array", "items": OBJECT}, [GOOD], [INVENTED]),
        ({"type": "array", "prefixItems": [OBJECT]}, [GOOD], [INVENTED]),
        ({"anyOf": [OBJECT, {"type": "null"}]}, GOOD, INVENTED),
        ({"type": "object", "additionalProperties": OBJECT}, {"any": GOOD}, {"any": INVENTED}),
        ({"type": "object", "properties": {"o": {"allOf": [OBJECT]}}}, {"o": GOOD}, {"o": INVENTED}),
        ({"$ref": "#/$defs/O", "$defs": {"O": OBJECT}}, GOOD, INVENTED),
        ({"$ref": "#/definitions/O", "definitions": {"O": OBJECT}}, GOOD, INVENTED),
        ({**OBJECT, "patternProperties": {"^x": {"type": "integer"}}}, {"a": "", "x": 1}, INVENTED),
    ],
)
def test_an_object_that_names_its_properties_gets_no_others(schema: Any, meant: Any, invented: Any) -> None:
    assert jsonschema_rs.is_valid(schema, invented)
    assert jsonschema_rs.is_valid(closed(schema), meant)
    assert not jsonschema_rs.is_valid(closed(schema), invented)
    assert FormatChecks().problem_of(JsonFormat(json.dumps(closed(schema)))) is None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {"type": "object", "properties": {}},
        {**OBJECT, "additionalProperties": True},
        {**OBJECT, "additionalProperties": {"type": "string"}},
        {**OBJECT, "unevaluatedProperties": {"type": "string"}},
        {**OBJECT, "minProperties": 2},
        {**OBJECT, "required": ["a", "b"]},
        {"type": "object", "allOf": [A, B]},
        {"type": "object", "allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}},
        {"type": "object", **A, "anyOf": [B, {"required": ["a"]}]},
        {"type": "object", **A, "$ref": "#/$defs/B", "$defs": {"B": B}},
        {"oneOf": [A], "anyOf": [B]},
        {"enum": [{"properties": {"a": 1}}], "default": OBJECT, "const": OBJECT, "examples": [OBJECT]},
        {"properties": 5, "items": 5, "$defs": [OBJECT], "required": 5, "allOf": 5},
    ],
)
def test_an_object_that_means_others_or_is_described_in_parts_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema


def test_what_is_no_schema_is_not_taken_for_one() -> None:
    assert closed({"properties": {"a": 1}, "required": [{}, 5, "a"]}) == {
        "properties": {"a": 1},
        "required": [{}, 5, "a"],
    }


@pytest.mark.parametrize("literal", [False, True])
def test_forced_calls_and_formats_are_closed_unless_schemas_are_read_literally(literal: bool) -> None:
    tools = (StoredTool(name="t", parameters=OBJECT),)
    forced = RequestBody(tools=tools, tool_choice=StoredToolChoice(mode="required"), literal_schemas=literal)
    asked = StoredFormat.model_validate({"type": "json_schema", "name": "n", "schema": OBJECT})
    formatted = RequestBody(format=asked, literal_schemas=literal)
    for body, value in ((forced, {"name": "t", "arguments": INVENTED}), (formatted, INVENTED)):
        held_to = required_format(body)
        assert held_to is not None
        assert jsonschema_rs.is_valid(json.loads(held_to.schema or ""), value) is literal
    for text in (tools[0].parameters, asked.schema_):
        assert json.loads(text or "") == OBJECT  # what the prompt and the client are shown
