"""The formats of answers that vLLM's clients ask for beside OpenAI's `response_format`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from protocol.client_errors import InvalidRequest
from protocol.field_types import HistoryBody, Pattern, Text
from protocol.requests.options import MOST_SCHEMA_BYTES, JsonSchema, SamplingFields
from request_body import StoredFormat

# Most choices of an answer; together they have at most MOST_SCHEMA_BYTES, as a schema has. Not tuned otherwise.
MOST_CHOICES = 1000
META_CHARACTERS = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


def schema_of(value: Any) -> Any:
    """Parses a schema that is given as text, and returns any other value as it is; raises ValueError."""
    return from_json(value, allow_inf_nan=False) if isinstance(value, str) else value


Schema = Annotated[JsonSchema, BeforeValidator(schema_of)]
Grammar = Annotated[Text, Field(min_length=1, max_length=MOST_SCHEMA_BYTES)]
Choices = Annotated[list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=MOST_CHOICES)]


class StructuredOutputs(HistoryBody):
    """vLLM's `structured_outputs`; a client gives one of its fields."""

    json_: Schema | None = Field(default=None, alias="json", description="A JSON Schema that the answer must match")
    regex: Pattern | None = Field(default=None, description="A regular expression that the whole answer must match")
    choice: Choices | None = Field(default=None, description="The answer is one of these texts")
    grammar: Grammar | None = Field(default=None, description="A grammar of the whole answer, in Lark's form or GBNF")
    json_object: Literal[True] | None = Field(default=None, description="true: the answer is any JSON object")


class StructuredFields(SamplingFields):
    """The fields by which vLLM's clients ask for a format: `structured_outputs`, and `guided_...` of older clients."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = Field(default=None, description="As `structured_outputs.json`")
    guided_regex: Pattern | None = Field(default=None, description="As `structured_outputs.regex`")
    guided_choice: Choices | None = Field(default=None, description="As `structured_outputs.choice`")

    guided_grammar: Grammar | None = Field(default=None, description="As `structured_outputs.grammar`")

    def format_beside(self, name: str, format: StoredFormat | None) -> tuple[str, StoredFormat | None]:
        """Returns the field that asks for a format, and the format; raises InvalidRequest for several."""
        inner = self.structured_outputs or StructuredOutputs()
        asked = {
            name: format,
            "guided_json": _of_schema(self.guided_json),
            "guided_regex": _matching(self.guided_regex),
            "guided_choice": _one_of(self.guided_choice, "guided_choice"),
            "guided_grammar": _of_grammar(self.guided_grammar),
            "structured_outputs.json": _of_schema(inner.json_),
            "structured_outputs.regex": _matching(inner.regex),
            "structured_outputs.choice": _one_of(inner.choice, "structured_outputs.choice"),
            "structured_outputs.grammar": _of_grammar(inner.grammar),
            "structured_outputs.json_object": StoredFormat(type="json_object") if inner.json_object else None,
        }
        given = [field for field, found in asked.items() if found is not None]
        if len(given) > 1:
            raise InvalidRequest(f"An answer has one format: leave out {' or '.join(given)}.", param=given[-1])
        return (given[0], asked[given[0]]) if given else (name, None)


def _of_schema(schema: Mapping[str, Any] | None) -> StoredFormat | None:
    stored = {"type": "json_schema", "name": "answer", "schema": schema}
    return None if schema is None else StoredFormat.model_validate(stored)


def _of_grammar(grammar: str | None) -> StoredFormat | None:
    return None if grammar is None else StoredFormat(type="grammar", grammar=grammar)


def _matching(pattern: str | None) -> StoredFormat | None:
    return None if pattern is None else StoredFormat(type="regex", pattern=pattern)


def _one_of(choices: list[str] | None, param: str) -> StoredFormat | None:
    if choices is None:
        return None
    pattern = "|".join(META_CHARACTERS.sub(r"\\\g<0>", choice) for choice in choices)
    if len(pattern.encode()) > MOST_SCHEMA_BYTES:
        raise InvalidRequest(f"Choices have at most {MOST_SCHEMA_BYTES:,} bytes together.", param=param)
    return _matching(f"({pattern})")
