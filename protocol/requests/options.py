"""The options of all calls that generate: the sampling and the format of the answer.

A new option of sampling is a field of `SamplingFields` and, under the same name, of `request_body.Sampling`.
"""

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic_core import to_json

from inference.engine_requests import MAX_TOKEN_ID, JsonFormat
from inference.json_grammar import FormatChecks
from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.request_tokens import RequestTokens
from inference.tool_calls import required_format
from processes.cpu_turns import others_turn
from protocol.client_errors import InvalidRequest
from protocol.field_types import Body, HistoryBody, Text, by_type, storable
from request_body import RequestBody, Sampling, StoredFormat

MOST_BIASES = 300  # OpenAI's bound
MOST_STOP_TOKENS = 64  # each token of a row is compared with them; not tuned otherwise
MOST_SEEDS = 2**31  # every engine takes a seed below this, and two requests seldom draw the same one

# The engine that serves a request compiles its schema, which takes longer for a larger one. OpenAI allows ten levels of
# nested objects, each of which is three levels of JSON, and 120,000 characters of names and values. Not tuned.
MOST_SCHEMA_BYTES = 2**16
MOST_SCHEMA_DEPTH = 32
# characters of the joint schema of all tools, to which an answer that must call one is held; not tuned
MOST_FORMAT_CHARACTERS = 4 * MOST_SCHEMA_BYTES
MOST_TOP_LOGPROBS = 20  # OpenAI's bound
LARGEST_INTEGER = 2**63 - 1

# fields of RequestBody that make the prompt
OF_THE_PROMPT = ("messages", "raw", "prompt_ids", "continues", "reasoning", "template_variables")
LargeInteger = Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)]

TopLogprobs = Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenName = Annotated[str, Field(pattern=r"^\d{1,9}$")]  # a token id, as a name in a JSON object
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
TemplateVariables = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,63}$")],
        bool | LargeInteger | Annotated[float, Field(allow_inf_nan=False)] | Annotated[Text, Field(max_length=1000)],
    ],
    Field(max_length=16, description="Variables of the model's chat template, such as enable_thinking"),
]
ThinkingTokens = Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | Literal["auto"]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
AskedTier = Annotated[
    Literal["auto", "default", "flex", "off_peak", "priority"] | None,
    Field(
        description="auto is default; flex: served with capacity that others leave; off_peak: likewise, in off-peak "
        "hours alone; priority: ahead of others, as many at once as the tenant may have"
    ),
]


class SamplingFields(HistoryBody):
    """Further options of sampling, named as in OpenAI's and vLLM's APIs; some accept only their usual value."""

    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = Field(
        default=None, description="Sample among the k likeliest tokens; 0 or -1: among all"
    )
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None, description="Sample among tokens at least this share as likely as the likeliest"
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = Field(
        default=None, description="Above 1: tokens that the prompt or the answer has become less likely"
    )
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)] | None = Field(
        default=None, description="The answer does not end by itself before this many tokens"
    )
    ignore_eos: bool | None = Field(default=None, description="true: the answer goes on to its limit")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS)] | None = Field(
        default=None, description="Each of these tokens ends the answer"
    )
    frequency_penalty: Penalty | None = Field(
        default=None, description="Lowers a token's logit for each time that the answer has it"
    )
    presence_penalty: Penalty | None = Field(
        default=None, description="Lowers the logits of all tokens that the answer has"
    )
    logit_bias: Annotated[dict[TokenName, Bias], Field(max_length=MOST_BIASES)] | None = Field(
        default=None, description="Token ids, each with what is added to its logit"
    )
    thinking_token_budget: ThinkingTokens | None = Field(
        default=None,
        description="Thinking is ended after this many tokens; auto: in time for an answer within the limit; -1: never",
    )
    skip_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: Literal[False] | None = None
    use_beam_search: Literal[False] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    truncate_prompt_tokens: None = None
    # names of the user and of OpenAI's prompt cache: accepted, not used
    user: Annotated[Text, Field(max_length=512)] | None = None
    safety_identifier: Annotated[Text, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[Text, Field(max_length=512)] | None = None
    prompt_cache_retention: Annotated[Text, Field(max_length=64)] | None = None
    prompt_cache_options: Annotated[dict[Text, Any], Field(max_length=64)] | None = None

    def request_body(self, prompt: ModelPrompt, defaults: Mapping[str, float], **others: Any) -> RequestBody:
        """Returns what these fields ask for, with the parts of the prompt that are stored in the body.

        Fields of the same name are taken over; `others` replace them. A field that is None asks for nothing, or for
        what the model's own `defaults` say; only this method applies the defaults, and temperature 0 stays greedy.
        A streamed answer that is sampled gets a seed: after the loss of a worker the same text is generated again.
        """
        names = [field.name for field in dataclasses.fields(Sampling)]
        parts = {name: getattr(prompt.body, name) for name in OF_THE_PROMPT}
        given = {name: getattr(self, name, None) for name in (*names, *RequestBody.model_fields)} | parts | others
        asked = {name: value for name, value in given.items() if value is not None}
        if asked.get("top_k", 0) < 0:
            asked["top_k"] = 0
        if asked.get("thinking_token_budget") == -1:
            del asked["thinking_token_budget"]
        if "logit_bias" in asked:
            asked["logit_bias"] = tuple((int(token), bias) for token, bias in asked["logit_bias"].items())
        greedy = not asked.get("temperature", defaults.get("temperature"))
        own = {name: value for name, value in defaults.items() if name == "repetition_penalty" or not greedy}
        defaulted = tuple(name for name in own if name not in asked)
        asked = own | asked
        if asked.get("stream") and asked.get("temperature") and "seed" not in asked:
            asked["seed"] = secrets.randbelow(MOST_SEEDS)
        sampling = {name: asked.pop(name) for name in names if name in asked}
        return RequestBody.model_validate({**asked, "sampling": sampling, "defaulted": defaulted})


def bounded_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema; raises ValueError if it is too large or too deep."""
    if len(to_json(schema)) > MOST_SCHEMA_BYTES:
        raise ValueError(f"a schema has at most {MOST_SCHEMA_BYTES:,} bytes")
    level: list[Any] = [schema]
    for _ in range(MOST_SCHEMA_DEPTH):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return schema
    raise ValueError(f"a schema is nested at most {MOST_SCHEMA_DEPTH} deep")


def _parts(value: Any) -> list[Any]:
    """Returns the parts of a JSON value; raises ValueError for values that Postgres or an engine cannot take."""
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
    """Any JSON object, or one that matches a schema, as llama.cpp's clients send it."""

    type: Literal["json_object"]
    schema_: JsonSchema | None = Field(default=None, alias="schema")


class JsonSchemaFormat(Body):
    """JSON that matches a schema, as a chat asks for it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class TextSchemaFormat(NamedSchema):
    """JSON that matches a schema, as a response asks for it."""

    type: Literal["json_schema"]


FORMAT = by_type("format", "must be of type text, json_object or json_schema", default="text")
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


def stored_format(
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | TextSchemaFormat | None,
) -> StoredFormat | None:
    """Returns the format as it is stored, whichever call asked for it, or None for plain text."""
    if format is None or isinstance(format, TextFormat):
        return None
    if isinstance(format, JsonObjectFormat):
        like = {"type": "json_schema", "name": "answer", "schema": format.schema_}
        return StoredFormat.model_validate(like if format.schema_ else {"type": "json_object"})
    named = format.json_schema.model_dump(by_alias=True) if isinstance(format, JsonSchemaFormat) else {}
    return StoredFormat.model_validate(format.model_dump(by_alias=True) | named)


def check_options(body: RequestBody, limit_tokens: int, format_param: str, tenant: str, tokens: RequestTokens) -> None:
    """Raises InvalidRequest for options that exclude each other, and for formats that cannot be enforced.

    `format_param` is the client's field with the format, for errors. Formats of one tenant are checked one at a time,
    by the tokens of its model, of which a first check starts a process.
    """
    if body.sampling.min_tokens > limit_tokens:
        raise InvalidRequest(
            f"Invalid 'min_tokens': the answer has at most {limit_tokens:,} tokens.", param="min_tokens"
        )
    required = body.tool_choice.mode == "required"
    if body.format is not None and required:
        raise InvalidRequest(
            f"'{format_param}' and a required call exclude each other: an answer is one or the other.",
            param="tool_choice",
        )
    if required:
        _check_choice(body)
    held_to = required_format(body)
    if held_to is None:
        return
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body.sampling, name):
            raise InvalidRequest(f"'{name}' is against a format, whose end ends the answer.", param=name)
    _check_format(held_to, "tools" if required else format_param, tenant, tokens.formats)


def check_limit(body: RequestBody, limit_tokens: int, param: str, tenant: str, tokens: RequestTokens) -> None:
    """Raises InvalidRequest, naming `param`, for a limit below the shortest answer that was found for the format."""
    held_to = required_format(body)
    if held_to is None:
        return
    with others_turn():
        shortest = tokens.formats.shortest_tokens(held_to, tenant)
    if shortest is not None and limit_tokens < shortest:
        raise InvalidRequest(
            f"Invalid '{param}': the shortest answer in this format has {shortest:,} tokens, but at most "
            f"{limit_tokens:,} may be generated.",
            param=param,
            code="integer_below_min_value",
        )


def _check_choice(body: RequestBody) -> None:
    names, wanted = [tool.name for tool in body.tools], body.tool_choice.function
    if not names:
        raise InvalidRequest("Invalid 'tool_choice': there are no tools to choose from.", param="tool_choice")
    if wanted is not None and wanted not in names:
        raise InvalidRequest(f"Invalid 'tool_choice': no function '{wanted}' is among the tools.", param="tool_choice")


def _check_format(format: JsonFormat, param: str, tenant: str, formats: FormatChecks) -> None:
    if len(format.schema or "") > MOST_FORMAT_CHARACTERS:
        problem: str | None = f"together the tools have more than {MOST_FORMAT_CHARACTERS:,} characters"
    else:
        with others_turn():
            problem = formats.problem_of(format, tenant)
    if problem is not None:
        raise InvalidRequest(
            f"Invalid schema in '{param}': {problem}. Answers can be held to schemas of at most {MOST_SCHEMA_BYTES:,} "
            f"bytes and {MOST_SCHEMA_DEPTH} levels that need neither 'not' nor look-around nor other documents.",
            param=param,
            code="invalid_json_schema",
        )
