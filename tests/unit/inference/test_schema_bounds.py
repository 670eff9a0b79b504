"""Schemas beyond a bound, which is told by name."""

from typing import Any

import pytest

from inference.client_schemas import exceeded_bound

BEYOND: dict[str, Any] = {
    "properties": {"properties": {f"key{number}": {} for number in range(501)}},
    "patterns of properties": {"items": {"patternProperties": {f"^{number}$": {} for number in range(33)}}},
    "enum": {"enum": list(range(5001))},
    "anyOf": {"anyOf": [{}] * 501},
    "allOf": {"$defs": {"a": {"allOf": [{}] * 101}}},
    "multipleOf": {"type": "integer", "multipleOf": 9999999},
    "characters of one pattern": {"pattern": "a" * 4001},
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_exceeds_a_bound_is_named(name: str):
    assert name in str(exceeded_bound(BEYOND[name]))


@pytest.mark.parametrize("multiple", [1, 0.01, 0.25, 1e-7, 1000, 9999])
def test_usual_multiples_are_within_their_bound(multiple: float):
    assert exceeded_bound({"multipleOf": multiple}) is None


@pytest.mark.parametrize("multiple", [10001, -10001, 1e30, 1e300, float("inf"), float("nan"), 10**4000, 1.23456789])
def test_multiples_of_many_steps_are_beyond_it(multiple: float):
    assert "multipleOf" in str(exceeded_bound({"multipleOf": multiple}))


def test_a_bound_is_told_in_few_words_however_large_the_value_is():
    assert len(str(exceeded_bound({"multipleOf": 10**4000}))) < 100


@pytest.mark.parametrize(
    "schema",
    [{}, True, {"multipleOf": True}, {"enum": None}, [], {"properties": {"enum": {}, "pattern": {}, "multipleOf": {}}}],
)
def test_properties_with_the_names_of_keywords_are_no_keywords(schema: Any):
    assert exceeded_bound(schema) is None
