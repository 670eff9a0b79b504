"""Answers under a grammar are led to a valid end at every limit that holds one, with guesses and after preemptions."""

import json
import re
from dataclasses import replace
from time import thread_time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine_requests import DecodingRequest, FinishedRow, JsonFormat
from inference.json_grammar import compiled
from inference.local.engine import Engine
from inference.local.engine_options import EngineOptions
from inference.local.guessed_tokens import Guessing
from inference.local.tokens.format_masks import FormatMasks
from request_body import AnswerForm, Sampling
from tests.unit.inference.local.tokens.test_format_masks import masks_of_bundled, objects, schemas
from tests.unit.inference.tiny_models import AMPLE, drain, known


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TREE = {
    "$defs": {
        "tree": {
            "anyOf": [
                an_object(kind={"const": "branch"}, left={"$ref": "#/$defs/tree"}, right={"$ref": "#/$defs/tree"}),
                an_object(kind={"const": "leaf"}),
            ]
        }
    },
    "$ref": "#/$defs/tree",
}
ROW = an_object(name={"type": "string"}, size={"type": "integer", "minimum": 100}, done={"type": "boolean"})
TABLE = an_object(title={"type": "string"}, rows={"type": "array", "items": ROW})
HARD = [
    TREE,
    TABLE,
    an_object(when={"type": "string", "format": "date-time"}, id={"type": "string", "format": "uuid"}),
    an_object(mail={"type": "string", "format": "email"}, code={"type": "string", "pattern": r"^\d+-[A-F]{3}$"}),
    an_object(tags={"type": "array", "items": {"enum": ["alphabet", "b"]}, "minItems": 2}),
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}, "minProperties": 1},
]


def shortest(format: JsonFormat, masks: FormatMasks) -> int:
    matcher = compiled(format, masks._vocabulary)
    ending = masks._endings.shortest(matcher, thread_time() + 10.0, masks._endings.leads(format.answer_form))
    assert ending is not None
    return len(ending)


def asked(schema: dict[str, Any], limit: int, temperature: float = 0.0, seed: int = 0) -> DecodingRequest:
    sampling = Sampling(temperature, seed=seed)
    return known("bundled").pool[0].sequence("a", limit=limit, format=JsonFormat(json.dumps(schema)), sampling=sampling)


def assert_whole(row: FinishedRow, schema: dict[str, Any], limit: int) -> None:
    text = known("bundled").loaded.tokenizer.decode(row.generated_ids, skip_special_tokens=True)
    assert row.reason in ("eos", "landed"), (row.reason, row.refusal, text, limit)
    assert len(row.generated_ids) <= limit
    jsonschema_rs.validator_for(schema).validate(json.loads(text))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    schema=objects(schemas) | st.sampled_from(HARD),
    over=st.integers(0, 40),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    seed=st.integers(0, 9),
)
def test_any_small_schema_gives_a_valid_answer_at_any_limit_that_holds_one(schema, over, temperature, seed):
    bundled = known("bundled")
    limit = shortest(JsonFormat(json.dumps(schema)), masks_of_bundled()) + over
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert([asked(schema, max(1, limit), temperature, seed), bundled.pool[1].sequence("plain")])
    done = drain(engine)
    assert_whole(done["a"], schema, max(1, limit))
    assert done["plain"].generated_ids == bundled.pool[1].answer


@pytest.mark.parametrize("schema", HARD, ids=range(len(HARD)))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_each_limit_from_the_shortest_answer_on_gives_a_valid_answer(schema, temperature):
    bundled = known("bundled")
    least = shortest(JsonFormat(json.dumps(schema)), masks_of_bundled())
    engine = Engine(bundled.loaded, AMPLE)
    limits = {f"{limit}": limit for limit in range(least, least + 60, 4)}
    engine.insert([replace(asked(schema, limit, temperature, limit), id=id) for id, limit in limits.items()])
    done = drain(engine)
    for id, limit in limits.items():
        assert_whole(done[id], schema, limit)
