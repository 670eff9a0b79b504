"""Answers under a grammar are led to a valid end at every limit that holds one, with guesses and after preemptions."""

import json
import re
from dataclasses import replace
from functools import cache
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


@cache
def shortest(format: JsonFormat) -> int:
    masks = masks_of_bundled()
    matcher = compiled(format, masks._vocabulary)
    ending = masks._endings.shortest(matcher, thread_time() + 0.2, masks._endings.leads(format.answer_form))
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
    limit = shortest(JsonFormat(json.dumps(schema))) + over
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert([asked(schema, max(1, limit), temperature, seed), bundled.pool[1].sequence("plain")])
    done = drain(engine)
    assert_whole(done["a"], schema, max(1, limit))
    assert done["plain"].generated_ids == bundled.pool[1].answer


@pytest.mark.parametrize("schema", HARD, ids=range(len(HARD)))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 3.0])
def test_each_limit_from_the_shortest_answer_on_gives_a_valid_answer(schema, temperature):
    bundled = known("bundled")
    least = shortest(JsonFormat(json.dumps(schema)))
    engine = Engine(bundled.loaded, AMPLE)
    limits = {f"{limit}": limit for limit in range(least, least + 60, 4)}
    engine.insert([replace(asked(schema, limit, temperature, limit), id=name) for name, limit in limits.items()])
    done = drain(engine)
    for name, limit in limits.items():
        assert_whole(done[name], schema, limit)


@pytest.mark.parametrize("cut", [1, 7, 20, 33, 39])
@pytest.mark.parametrize("schema", HARD, ids=range(len(HARD)))
def test_a_row_that_was_preempted_near_its_limit_still_ends_validly(schema, cut):
    bundled = known("bundled")
    limit = shortest(JsonFormat(json.dumps(schema))) + 25
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert([asked(schema, limit, 1.0, seed=cut)])
    for _ in range(cut):
        if ended := engine.step():
            assert_whole(ended[0], schema, limit)
            return
    other = Engine(bundled.loaded, AMPLE)
    other.insert([engine.preempt("a")])
    assert_whole(drain(other)["a"], schema, limit)


@pytest.mark.parametrize("schema", HARD, ids=range(len(HARD)))
def test_guesses_change_no_token_of_an_answer_that_is_led_to_its_end(schema):
    bundled = known("bundled")
    limit = shortest(JsonFormat(json.dumps(schema))) + 30
    done = []
    for options in (EngineOptions(), EngineOptions(guessing=Guessing(8))):
        engine = Engine(bundled.loaded, AMPLE, options)
        engine.insert([asked(schema, limit)])
        done.append(drain(engine)["a"])
        assert_whole(done[-1], schema, limit)
    assert done[0].generated_ids == done[1].generated_ids


def test_an_answer_is_told_apart_from_one_that_ends_by_itself():
    free, led = drained(asked(an_object(kind={"enum": ["abc", "d"]}), 100)), drained(asked(TABLE, 60))
    assert (free.reason, led.reason) == ("eos", "landed")


def drained(sequence: DecodingRequest) -> FinishedRow:
    engine = Engine(known("bundled").loaded, AMPLE)
    engine.insert([sequence])
    return drain(engine)[sequence.id]


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_an_answer_that_is_complete_at_its_limit_needs_no_end_of_sequence(limit):
    [row] = [drained(replace(asked({}, limit), format=JsonFormat(pattern="(a|b)+")))]
    assert (row.reason, len(row.generated_ids) <= limit) in {("landed", True), ("eos", True)}
    text = known("bundled").loaded.tokenizer.decode(row.generated_ids, skip_special_tokens=True)
    assert re.fullmatch("(a|b)+", text)


def test_logprobs_of_a_token_that_was_replaced_are_its_own():
    row = drained(replace(asked(TABLE, 40), top_logprobs=2))
    assert row.reason == "landed"
    assert tuple(one.id for one in row.logprobs) == row.generated_ids


def test_thinking_leaves_room_for_the_answer():
    form = AnswerForm(opening="<user>", closing="<assistant>", opened=True)
    behind = JsonFormat(json.dumps(TABLE), answer_form=form)
    limit = shortest(behind) + 10
    row = drained(replace(asked(TABLE, limit, 2.0, seed=3), format=behind))
    text = known("bundled").loaded.tokenizer.decode(row.generated_ids, skip_special_tokens=False)
    assert row.reason == "landed"
    jsonschema_rs.validator_for(TABLE).validate(json.loads(text.partition("<assistant>")[2].partition("<eos>")[0]))


@pytest.mark.parametrize("limit", [200, 340, 360])
def test_an_answer_whose_ending_is_long_is_followed_to_its_end(limit):
    prompt = known("bundled").loaded.tokenizer.encode("Tell me of three friends, as JSON.").ids
    assert_whole(drained(replace(asked(TREE, limit), prompt_ids=tuple(prompt))), TREE, limit)


@pytest.mark.parametrize("form", [("<user>", "<assistant>"), ("<think>", "</think>")])
@pytest.mark.parametrize("budget", [0, 3, 8, 30])
@pytest.mark.parametrize("over", [0, 1, 4, 9, 40])
def test_a_budget_of_thinking_and_a_limit_leave_the_answer_whole(form, budget, over):
    opening, closing = form
    behind = JsonFormat(json.dumps(ROW), answer_form=AnswerForm(opening=opening, closing=closing, opened=True))
    limit = shortest(behind) + over
    row = replace(asked(ROW, limit, 1.0, seed=over), format=behind)
    row = replace(row, sampling=replace(row.sampling, thinking_token_budget=budget))
    whole = drained(row)
    for steps in (0, 2, 5, 9, 14):
        engine = Engine(known("bundled").loaded, AMPLE)
        engine.insert([row])
        ended = [one for _ in range(steps) for one in engine.step()]
        found = ended[0] if ended else drained(engine.preempt(row.id))
        text = known("bundled").loaded.tokenizer.decode(found.generated_ids, skip_special_tokens=False)
        assert found.reason in ("eos", "landed"), (found.refusal, text)
        assert len(found.generated_ids) <= limit
        jsonschema_rs.validator_for(ROW).validate(json.loads(text.partition(closing)[2].removesuffix("<eos>")))
        assert found.generated_ids[: budget + 1] == whole.generated_ids[: budget + 1]


def test_a_limit_that_holds_no_answer_ends_the_row_as_before():
    least = shortest(JsonFormat(json.dumps(TABLE)))
    assert drained(asked(TABLE, least - 1)).reason == "limit"


def test_one_row_that_is_led_beside_a_plain_one_leaves_the_plain_tokens_unchanged():
    bundled = known("bundled")
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert([bundled.pool[1].sequence("plain"), asked(TABLE, 40), bundled.pool[2].sequence("other")])
    done = drain(engine)
    assert done["a"].reason == "landed"
    assert (done["plain"].generated_ids, done["other"].generated_ids) == (
        bundled.pool[1].answer,
        bundled.pool[2].answer,
    )


@pytest.mark.parametrize("leaf", ["leaf", "a"])  # behind and before `branch` in the order in which bytes are tried
@pytest.mark.parametrize("nested", [3, 12, 25])
def test_however_deep_a_recursion_is_a_quick_search_takes_the_way_out_of_it(nested, leaf):
    schema = json.dumps(TREE).replace('"leaf"', f'"{leaf}"')
    masks = masks_of_bundled()
    matcher = compiled(JsonFormat(schema), masks._vocabulary)
    begun = '{"kind": "branch", "left": ' * nested
    matcher.consume_tokens(masks._vocabulary.tokenize_str(begun))
    ending = masks._endings.short(matcher, thread_time() + 5)
    assert ending is not None
    text = begun + masks._vocabulary.decode_bytes(ending).decode()
    jsonschema_rs.validator_for(json.loads(schema)).validate(json.loads(text))
    assert text.count(f'"{leaf}"') <= nested + 4  # at least `nested` + 1: the walk may take a wrong way, once or so
