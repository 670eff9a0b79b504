"""Types of single values in bodies and queries; a value that they refuse never reaches the database."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

MAX_KEY_LENGTH, MAX_VALUE_LENGTH, MAX_PAIRS = 64, 512, 16  # OpenAI's bounds of `metadata`


def storable(value: str) -> str:
    """Returns the text if Postgres can store it; raises ValueError for NUL. The JSON parser refuses lone surrogates."""
    if "\0" in value:
        raise ValueError("text must not contain NUL")
    return value


Text = Annotated[str, AfterValidator(storable), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})]
MOST_PATTERN_CHARACTERS = 4096  # `FormatChecks` bounds the time of its compilation. Not tuned otherwise
Pattern = Annotated[Text, Field(min_length=1, max_length=MOST_PATTERN_CHARACTERS)]
Metadata = Annotated[
    dict[
        Annotated[Text, Field(min_length=1, max_length=MAX_KEY_LENGTH)],
        Annotated[Text, Field(max_length=MAX_VALUE_LENGTH)],
    ],
    Field(max_length=MAX_PAIRS),
]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
# Most tokens of an answer; some clients send -1 if they set no limit.
AnswerLimit = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(lambda value: None if value == -1 else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": -1}, {"type": "null"}]}),
]
StopString = Annotated[Text, Field(min_length=1, max_length=64)]
StopStrings = Annotated[list[StopString], Field(max_length=4)]


def text_or_list(value: object) -> str | None:
    """Returns the tag of the branch that a value belongs to, so that an error names the field and not every branch."""
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


TEXT_OR_LIST = Discriminator(
    text_or_list, custom_error_type="text_or_list", custom_error_message="must be a text or a list"
)


def kind_of(value: Any, default: str | None = None) -> Any:
    """Returns the `type` that an object states, or `default`."""
    return value.get("type") or default if isinstance(value, dict) else getattr(value, "type", None)


def by_type(error: str, message: str, default: str | None = None) -> Discriminator:
    """Returns what finds an object's branch, tagged `<type>`, so that an error names the field and not every branch."""

    def tag(value: Any) -> str | None:
        return f"<{kind}>" if isinstance(kind := kind_of(value, default), str) else None

    return Discriminator(tag, custom_error_type=error, custom_error_message=message)


# Whether a stream tells how long its answer still takes, and if so, whether in a comment instead of an event
AskedProgress = bool | Literal["comment"]


def only_beside(other: str, needed: object, message: str) -> AfterValidator:
    """Refuses a value unless the field `other`, declared before, is `needed`; an empty value is always accepted."""

    def check(value: object, fields: ValidationInfo) -> object:
        if value not in ("", []) and fields.data.get(other) != needed:
            raise ValueError(message)
        return value

    return AfterValidator(check)


def fail_fast(schema: Any) -> None:
    """Sets Pydantic's `fail_fast` for each list in a core schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            fail_fast(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            fail_fast(part)


def _is_nullable(shown: JsonSchemaValue) -> bool:
    return any(one.get("type") == "null" for one in (shown, *shown.get("anyOf", ()), *shown.get("oneOf", ())))


MOST_FIELDS = 100  # in one object; the largest body has 50. Not tuned


class Body(BaseModel):
    """A JSON object from a client: unknown fields and values of the wrong type are refused, never converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_many_fields(cls, value: Any) -> Any:
        """Refuses an object with more fields than any valid one has, because each unknown field costs an error."""
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"an object has at most {MOST_FIELDS} fields")
        return value

    @model_validator(mode="before")
    @classmethod
    def forget_nulls(cls, value: Any) -> Any:
        """Leaves out null fields that have a default, because some clients send every field that they know."""
        if not isinstance(value, dict) or None not in value.values():
            return value
        needed = {field.alias or name for name, field in cls.model_fields.items() if field.is_required()}
        known = {field.alias or name for name, field in cls.model_fields.items()} - needed
        return {name: one for name, one in value.items() if one is not None or name not in known}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Shows every field with a default as nullable."""
        shown = handler(schema)
        own = handler.resolve_ref_schema(shown)
        for name, field in own.get("properties", {}).items():
            if name not in own.get("required", ()) and not _is_nullable(field):
                said = {word: field.pop(word) for word in ("title", "description", "default") if word in field}
                own["properties"][name] = {"anyOf": [field, {"type": "null"}], **said}
        return shown

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Makes a list's validation end at its first wrong item: a client reads one error, and each takes 1 KB."""
        schema = handler(source)
        fail_fast(schema)
        return schema


HINTS = ("cache_control", "provider_specific_fields")  # what clients of other services leave in a conversation


class HistoryBody(Body):
    """A call, or a part of a conversation: hints and unknown nulls are ignored, other unknown fields are refused."""

    @model_validator(mode="before")
    @classmethod
    def forget_unknown_nulls(cls, value: Any) -> Any:
        """Leaves out hints, and null fields that are unknown here."""
        if not isinstance(value, dict):
            return value
        known = cls.model_fields
        return {name: one for name, one in value.items() if name in known or not (one is None or name in HINTS)}
