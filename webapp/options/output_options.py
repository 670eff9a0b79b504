"""What a client may ask of an answer beside its text, within bounds: a JSON format, and log probabilities."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import to_json

from webapp.field_types import Body, Text, storable

# A schema is compiled by the engine that serves the request, in a time that grows with it. OpenAI allows ten levels of
# nested objects, each of which takes three of these, and 120,000 characters of names and values. Not tuned.
MOST_SCHEMA_BYTES = 2**16
MOST_SCHEMA_DEPTH = 32
MOST_TOP_LOGPROBS = 20  # OpenAI's bound
LARGEST_INTEGER = 2**63 - 1

TopLogprobs = Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)]


def bounded_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, if it is neither too large nor too deep; raises ValueError."""
    if len(to_json(schema)) > MOST_SCHEMA_BYTES:
        raise ValueError(f"a schema has at most {MOST_SCHEMA_BYTES:,} bytes")
    level: list[Any] = [schema]
    for _ in range(MOST_SCHEMA_DEPTH):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return schema
    raise ValueError(f"a schema is nested at most {MOST_SCHEMA_DEPTH} deep")


def _parts(value: Any) -> list[Any]:
    """What a JSON value is made of; raises ValueError for what Postgres or an engine cannot take."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        storable(value)
    elif isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise ValueError("its integers must fit 64 bits")
    return []


JsonSchema = Annotated[dict[str, Any], AfterValidator(bounded_schema)]


class NamedSchema(Body):
    """A JSON Schema that the answer must match."""

    name: Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
    schema_: JsonSchema = Field(alias="schema", description="At most 64 KiB, nested at most 32 deep")
    description: Annotated[Text, Field(max_length=1024)] | None = None
    strict: bool | None = Field(default=None, description="The schema is kept to in any case")


class TextFormat(Body):
    """Plain text."""

    type: Literal["text"] = "text"


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that matches a schema, as a chat asks for it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class TextSchemaFormat(NamedSchema):
    """JSON that matches a schema, as a response asks for it."""

    type: Literal["json_schema"]


def format_tag(value: Any) -> str | None:
    """The tag of the format that a value asks for, so that an error names the field and not every kind of format."""
    kind = value.get("type", "text") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("text", "json_object", "json_schema") else None


FORMAT = Discriminator(
    format_tag, custom_error_type="format", custom_error_message="must be of type text, json_object or json_schema"
)
ChatFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonObjectFormat, Tag("<json_object>")]
    | Annotated[JsonSchemaFormat, Tag("<json_schema>")],
    FORMAT,
]
ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonObjectFormat, Tag("<json_object>")]
    | Annotated[TextSchemaFormat, Tag("<json_schema>")],
    FORMAT,
]


def stored_format(format: TextFormat | JsonObjectFormat | JsonSchemaFormat | TextSchemaFormat | None) -> Any:
    """What a request's row keeps of its format, in the form of /v1/responses; None for plain text."""
    if format is None or isinstance(format, TextFormat):
        return None
    if isinstance(format, JsonSchemaFormat):
        return {"type": format.type} | format.json_schema.model_dump(by_alias=True)
    return format.model_dump(by_alias=True)
