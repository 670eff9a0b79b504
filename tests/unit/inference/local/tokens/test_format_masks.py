"""Answers held to a format: by a model that never saw JSON, beside rows that ask for none, after a preemption."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine_requests import JsonFormat
from inference.json_grammar import compiled
from inference.local.batch_rows import BatchRow
from inference.local.engine import Engine
from inference.local.tokens.format_masks import FormatMasks, RowFormat
from inference.prompts.prompt_format import load_prompt_format
from request_body import Sampling
from settings import BUNDLED_MODEL
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


def test_an_answer_may_be_held_to_a_grammar():
    bundled = known("bundled")
    asked = JsonFormat(grammar='root ::= ("yes" | "no.") " " [a-c] [a-c] [a-c]')
    [done], _ = Engine(bundled.loaded, AMPLE).run([bundled.pool[0].sequence("a", format=asked)])
    assert done.reason == "eos"
    assert re.fullmatch(r"(yes|no\.) [a-c]{3}", bundled.loaded.tokenizer.decode(done.generated_ids[:-1]))


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


KEPT = [
    *(
        r"a+",
        r"\p{L}+",
        r"[\p{Lu}&&[A-F]]+",
        r"a{1000}",
        r"^abc$",
        r"^a|b$",
        r"\Aabc\z",
        r"(|a)",
        r"a||b",
        r"(?i)straße",
    ),
    *(r"\d{3}-\d{4}", r"(a|aa)*b", r"(.*a){20}", r"\x00", r"\x{1F600}", r"(?P<n>a)", r"a*?", "/", "🦊", "<|im_end|>"),
]
# Our engine's grammars know no look-around and no references; the last three fail with the model's own tokens alone.
NOT_KEPT = [
    *(
        r"(?=x)y",
        r"(?!x)y",
        r"(?<=a)b",
        r"(a)\1",
        r"\bword\b",
        r"a^b",
        r"a$b",
        r"(?m)^a$",
        r"[]",
        r"[\ud800]",
        r"(?>a)",
    ),
    *(r"a{,3}", r"a{3,1}", r"\Q.\E", r"[z-a]", r"*a", "(", "a{", r"[^\s\S]", r"[a&&b]", "<eos>", "a<eos>b"),
]
WEB = load_prompt_format(str(BUNDLED_MODEL)).formats
NO_STRINGS = [r"(?=x)y", r"(a)\1", r"\bword\b", r".{0,20000}", r"(\p{L}{1,20}\s){1,100}\."]


@pytest.mark.parametrize(
    ("format", "kept"),
    [
        *((JsonFormat(pattern=pattern), True) for pattern in KEPT),
        *((JsonFormat(pattern=pattern), False) for pattern in NOT_KEPT),
        *((JsonFormat(json.dumps({"type": "string", "pattern": pattern})), False) for pattern in NO_STRINGS),
    ],
    ids=lambda one: str(one.pattern or one.schema)[:40] if isinstance(one, JsonFormat) else str(one),
)
def test_the_web_process_accepts_the_patterns_that_a_worker_can_keep_to_and_no_others(format, kept):
    worker = known("bundled").loaded.format_masks
    assert worker is not None
    assert (WEB.problem_of(format) is None, worker.prepare(format) is None) == (kept, kept)


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
    masks = masks_of_bundled()
    return RowFormat(compiled(JsonFormat(schema), masks._vocabulary), masks._endings)


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
