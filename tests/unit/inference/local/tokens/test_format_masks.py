"""Answers held to a format: by a model that never saw JSON, beside rows that ask for none, after a preemption."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.json_grammar import compiled
from inference.local.batch_rows import BatchRow
from inference.local.engine import Engine
from inference.local.tokens.format_masks import FormatMasks, RowFormat
from inference.sequences import JsonFormat
from request_body import Sampling
from tests.unit.inference.tiny_models import AMPLE, drain, known

LIMIT = 400  # tokens; the bundled model's are bytes and syllables

scalars: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-50, 50),
        st.integers(0, 50),
    ),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 6)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.text('ab"\\é', max_size=3) | st.integers(0, 9), min_size=1, max_size=3),
    ),
    st.just({"type": "string", "pattern": "^[a-c]{2,3}$"}),
)


def objects(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["a", "b c", "ü"]), values, max_size=2).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["a"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
                "additionalProperties": False,
            }
        )
    )


schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 2)),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    ),
    max_leaves=4,
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(schema=objects(schemas), temperature=st.sampled_from([0.0, 1.0, 2.0]), seed=st.integers(0, 9))
def test_any_small_schema_gives_an_answer_that_is_valid_and_other_rows_do_not_notice(schema, temperature, seed):
    bundled = known("bundled")
    asked, beside = bundled.pool[0], bundled.pool[1]
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert(
        [
            asked.sequence(
                "json", limit=LIMIT, format=JsonFormat(json.dumps(schema)), sampling=Sampling(temperature, seed=seed)
            ),
            beside.sequence("plain"),
        ]
    )
    done = drain(engine)
    assert done["plain"].generated_ids == beside.answer
    assert done["json"].reason == "eos"
    text = bundled.loaded.tokenizer.decode(done["json"].generated_ids[:-1])
    answer = json.loads(text)
    jsonschema_rs.validator_for(schema).validate(answer)
    assert list(answer) == [name for name in schema["properties"] if name in answer]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_an_answer_may_be_held_to_a_pattern(temperature):
    bundled = known("bundled")
    pattern = r"(yes|no\.) [a-c]{3}"
    asked = JsonFormat(pattern=pattern)
    sampling = Sampling(temperature, seed=1)
    [done], _ = Engine(bundled.loaded, AMPLE).run([bundled.pool[0].sequence("a", format=asked, sampling=sampling)])
    assert done.reason == "eos"
    assert re.fullmatch(pattern, bundled.loaded.tokenizer.decode(done.generated_ids[:-1]))


def test_any_object_may_be_asked_for_and_ends_by_itself_or_at_its_limit():
    bundled = known("bundled")
    engine = Engine(bundled.loaded, AMPLE)
    asked = [
        one.sequence(str(n), limit=LIMIT, format=JsonFormat(), sampling=Sampling(1.0, seed=n))
        for n, one in enumerate(bundled.pool)
    ]
    done, _ = engine.run(asked)
    for row in done:
        text = bundled.loaded.tokenizer.decode(row.generated_ids)
        assert text.startswith("{")
        if row.reason == "eos":
            assert isinstance(json.loads(bundled.loaded.tokenizer.decode(row.generated_ids[:-1])), dict)
    assert {row.reason for row in done} <= {"eos", "limit"}


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
def test_a_row_that_was_preempted_goes_on_in_its_format(cut):
    bundled = known("bundled")
    schema = JsonFormat('{"type": "array", "items": {"enum": ["abc", "de"]}, "minItems": 3, "maxItems": 3}')
    engine = Engine(bundled.loaded, AMPLE)
    [whole], _ = engine.run([bundled.pool[0].sequence("a", limit=LIMIT, format=schema)])
    engine.insert([bundled.pool[0].sequence("a", limit=LIMIT, format=schema)])
    for _ in range(cut):
        engine.step()
    other = Engine(bundled.loaded, AMPLE)
    other.insert([engine.preempt("a")])
    assert drain(other)["a"].generated_ids == whole.generated_ids
    assert len(json.loads(bundled.loaded.tokenizer.decode(whole.generated_ids[:-1]))) == 3


REFUSED = ['{"type": "foo"}', '{"not": {"type": "string"}}', '{"type": "string", "pattern": "(?=x)y"}']


@pytest.mark.parametrize("schema", REFUSED)
def test_a_schema_that_cannot_be_kept_to_is_the_error_of_its_row_alone(schema):
    bundled = known("bundled")
    engine = Engine(bundled.loaded, AMPLE)
    engine.insert([bundled.pool[0].sequence("bad", format=JsonFormat(schema)), bundled.pool[1].sequence("good")])
    done = drain(engine)
    assert (done["bad"].reason, done["bad"].generated_ids) == ("refused", ())
    assert "format" in done["bad"].refusal
    assert done["good"].generated_ids == bundled.pool[1].answer


def test_a_row_resumed_with_tokens_that_its_format_rules_out_is_refused(llama):
    bundled = known("bundled")
    engine = Engine(bundled.loaded, AMPLE)
    wrong = bundled.pool[0].sequence("a", format=JsonFormat(), generated_ids=bundled.pool[0].answer[:2])
    [done], _ = engine.run([wrong])
    assert done.reason == "refused"


def test_a_model_whose_tokens_are_unknown_refuses_formats(llama):
    [done], _ = Engine(llama.loaded, AMPLE).run([llama.pool[0].sequence("a", format=JsonFormat())])
    assert done.reason == "refused"


FAILS_LATER = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^(a{1,100}){1,100}$"}},
    "required": ["a"],
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_format_fails_later_is_refused_by_name_and_never_ends_as_complete(temperature):
    bundled = known("bundled")
    engine = Engine(bundled.loaded, AMPLE)
    schema = JsonFormat(json.dumps(FAILS_LATER))
    sampling = Sampling(temperature, seed=1)
    engine.insert(
        [
            bundled.pool[0].sequence("bad", limit=LIMIT, format=schema, sampling=sampling),
            bundled.pool[1].sequence("good"),
        ]
    )
    done = drain(engine)
    assert done["good"].generated_ids == bundled.pool[1].answer
    if done["bad"].reason == "eos":
        jsonschema_rs.validator_for(FAILS_LATER).validate(
            json.loads(bundled.loaded.tokenizer.decode(done["bad"].generated_ids[:-1]))
        )
    else:
        assert done["bad"].reason in ("refused", "limit")


def masks_of_bundled() -> FormatMasks:
    masks = known("bundled").loaded.format_masks
    assert masks is not None
    return masks


def row_format(schema: str | None) -> RowFormat:
    return RowFormat(compiled(JsonFormat(schema), masks_of_bundled()._vocabulary))


def test_a_matcher_that_fails_while_it_computes_a_mask_refuses_its_row():
    bundled = known("bundled")
    without_answer = row_format('{"$ref": "#"}')
    without_answer.allowed_tokens(10)
    assert without_answer.error
    row = BatchRow(bundled.pool[0].sequence("a"), 0, 999, without_answer)
    assert row.append(min(bundled.loaded.eos_ids), bundled.loaded.eos_ids, bundled.loaded.tokenizer)
    assert (row.finish_reason, row.generated) == ("refused", [])


def test_a_row_beyond_its_budget_of_cpu_time_is_refused():
    row = row_format(None)
    row._spend(10.0)
    assert "CPU time" in row.error


def test_a_prepared_format_is_compiled_once_for_its_row():
    masks = masks_of_bundled()
    integer = JsonFormat('{"type": "integer"}')
    assert masks.prepare(integer) is None
    assert len(masks._prepared) == 1
    assert isinstance(masks.matcher(integer, ()), RowFormat)
    assert not masks._prepared
    assert masks.prepare(JsonFormat('{"type": "foo"}'))
