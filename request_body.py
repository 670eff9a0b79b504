"""The options of a request beside its texts and its limit, in one type from the API to the engine.

The schema of a call makes the RequestBody, `stored_form` returns the JSON that the request's row stores, `read_body`
reads that JSON, and the engine samples with its `Sampling`. A row of an earlier release, or of another program, may
lack fields; a field that is missing asks for nothing.

More than 300 lines, because every option of a request stands here and nowhere else.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import to_json

# Below this temperature a row is greedy: tokens whose logits differ by 1e-3 then differ in probability by a factor of
# e^100, and a temperature that float32 cannot hold would turn logits into infinities. vLLM has the same bound.
LEAST_TEMPERATURE = 1e-5

EVERYWHERE = frozenset({"top_p", "seed"})  # every engine that takes a temperature takes these too
NOT_FOR_GREEDY = frozenset({"top_k", "min_p"})  # these change nothing at temperature 0


class UnreadableBody(ValueError):
    """The stored body has another form than this release writes; `where` is the first field that differs."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(f"The stored request cannot be read: its body is malformed{where and f' at {where}'}.")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of an answer are sampled, and which of them end it; the defaults are greedy decoding.

    top_k 0, top_p 1 and min_p 0 keep all tokens. `min_p` keeps the tokens whose probability is at least this share of
    the likeliest token's. `repetition_penalty` divides the positive logits, and multiplies the negative ones, of tokens
    that the prompt or the answer has. Each occurrence of a token in the answer lowers its logit by `frequency_penalty`,
    the first by `presence_penalty` too. `logit_bias` has token ids, each with what is added to its logit. With
    `ignore_eos` an end of sequence is a token like any other. The first `min_tokens` tokens include neither an end of
    sequence nor one of the `stop_token_ids`, which end the answer too. Thinking is ended after `thinking_token_budget`
    tokens; "auto" is replaced by a number once the answer's limit is known. With `landing` the answer ends at the first
    end of a sentence within the last part of its limit.
    Raises ValueError for a value outside its range; sampling works with every other value.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    thinking_token_budget: int | Literal["auto"] | None = None
    landing: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_p <= 1 or not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"0 <= min_p <= 1, repetition_penalty must be above 0 and finite: {self}")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0 or (self.seed or 0) < 0:
            raise ValueError(
                f"temperature, top_k and seed must not be negative, temperature finite, 0 < top_p <= 1: {self}"
            )
        added = (self.frequency_penalty, self.presence_penalty, *(bias for _, bias in self.logit_bias))
        if not all(math.isfinite(one) for one in added):
            raise ValueError(f"penalties and biases must be finite: {self}")

    @property
    def greedy(self) -> bool:
        """Returns whether each step takes the likeliest token."""
        return self.temperature < LEAST_TEMPERATURE

    @property
    def counts_tokens(self) -> bool:
        """Returns whether tokens of the answer lower their own logits."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def changes_every_token(self) -> bool:
        """Returns whether it changes the model's logits before each token is chosen."""
        return self.repetition_penalty != 1 or self.counts_tokens or bool(self.logit_bias)

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns the names of the fields that ask for something that not every engine can do."""
        unneeded = EVERYWHERE if self.temperature else EVERYWHERE | NOT_FOR_GREEDY
        return tuple(
            field.name
            for field in fields(self)
            if field.name not in unneeded and getattr(self, field.name) != field.default
        )


GREEDY = Sampling()


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class StoredCall(_Part):
    """A call in an earlier answer; `arguments` is JSON as text, also that of a custom tool."""

    id: str
    name: str
    arguments: str
    custom: bool = False


class StoredTurn(_Part):
    """One message of a conversation."""

    role: str
    content: str
    tool_calls: tuple[StoredCall, ...] = ()
    tool_call_id: str | None = None  # id of the call whose result this message has
    reasoning: str | None = None  # what an earlier answer thought


def json_text(value: object) -> object:
    """Returns a JSON object as text; a text stays as it is."""
    return to_json(value).decode() if isinstance(value, Mapping) else value


CUSTOM_INPUT = "input"
# A JSON Schema as text: a model writes properties in the schema's order, and a `jsonb` column would sort them. Rows of
# release 1.0 have objects.
SchemaText = Annotated[str, BeforeValidator(json_text)]


class StoredTool(_Part):
    """A tool that an answer may call: a function, or a custom one, whose only parameter is the text CUSTOM_INPUT."""

    name: str
    description: str | None = None
    parameters: SchemaText | None = None
    strict: bool | None = None
    custom: bool = False


class StoredToolChoice(_Part):
    """Whether an answer must call a function, and which one if only one is allowed."""

    mode: Literal["none", "auto", "required"] = "auto"
    function: str | None = None


class StoredFormat(_Part):
    """The form of the answer; only `json_schema` has a schema, only `regex` a pattern, only `grammar` a grammar."""

    type: Literal["json_object", "json_schema", "regex", "grammar"]
    name: str | None = None
    description: str | None = None
    schema_: SchemaText | None = Field(default=None, alias="schema")
    strict: bool | None = None
    pattern: str | None = None
    grammar: str | None = None


class AnswerForm(_Part):
    """How the text of a model's answer is built; the default is plain text.

    Thinking stands in front, between the tags `opening` and `closing`; `opened` says that the prompt ends with the
    opening tag. With `channels`, the answer has the messages of gpt-oss, each behind the name of its channel.
    """

    opening: str = ""
    closing: str = ""
    opened: bool = False
    channels: bool = False

    @property
    def starts_with_thinking(self) -> bool:
        """Returns whether an answer begins with thinking or with the name of a channel, never with its text."""
        return self.opened or self.channels


PLAIN = AnswerForm()


class Pooling(_Part):
    """What is computed from an input, a JSON list of texts: a vector of each text, or a score of each document.

    The first `queries` texts are queries: a single query belongs to all documents, several belong to one document each.
    `tokens` counts what the model reads: of each text, or, if it is a cross-encoder, of each document with its query.
    """

    tokens: tuple[int, ...]
    queries: int = 0
    base64: bool = False  # the client wants each vector as base64
    top_n: int | None = None  # the client wants this many of the best documents
    returns_documents: bool = True


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateVariable = bool | int | float | str


class RequestBody(_Part):
    """The options of one request; the defaults ask for nothing special."""

    metadata: dict[str, str] = Field(default_factory=dict)  # pydantic would copy a `{}` deeply at each use
    background: bool = True
    stream: bool = False  # a client reads the answer while it is generated
    sampling: Sampling = GREEDY
    defaulted: tuple[str, ...] = ()  # fields of `sampling` that are dropped where no engine has them: a model's own
    stop: tuple[str, ...] = ()
    messages: tuple[StoredTurn, ...] = ()
    format: StoredFormat | None = None
    top_logprobs: int | None = None  # the client wants each token's log probability and this many alternatives
    raw: bool = False  # the model reads the input as it is, without its chat template
    prompt_ids: tuple[int, ...] = ()  # the tokens of a raw input that was sent as tokens
    pooling: Pooling | None = None  # if set, nothing is generated, and the answer is vectors or scores
    continues: bool = False  # the answer goes on with the conversation's last message
    reasoning: Effort | None = None  # how much the chat template tells the model to think; "none": not at all
    template_variables: dict[str, TemplateVariable] = Field(default_factory=dict)  # the chat template gets them
    answer_form: AnswerForm = PLAIN
    rendered_at: str = ""  # what the chat template's clock shows, ISO 8601 with its zone; "" if it reads none
    echo: bool = False  # the client wants the prompt in front of the answer
    tools: tuple[StoredTool, ...] = ()
    dropped_tools: tuple[str, ...] = ()  # types of tools that the client offered and that no engine here has
    tool_choice: StoredToolChoice = StoredToolChoice()
    parallel_tool_calls: bool = True
    literal_schemas: bool = False  # if True, schemas without `additionalProperties` allow further properties
    repeats_prompt: bool = False  # an earlier request of its call has the same prompt, which usage counts once
    twins: bool = True  # False: its answer is computed for it alone
    store: bool = True  # False: the request's texts are deleted once it is answered
    instructions: str | None = None  # the client's instructions alone, if its input began with system messages
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"

    @property
    def offered_tools(self) -> tuple[StoredTool, ...]:
        """Returns the functions that the prompt defines."""
        return () if self.tool_choice.mode == "none" else self.tools

    @property
    def uses_tools(self) -> bool:
        """Returns whether its prompt has definitions, calls or results of functions."""
        return bool(self.offered_tools) or any(
            message.role == "tool" or message.tool_calls for message in self.messages
        )

    def without_defaults(self, lacked: Collection[str]) -> "RequestBody":
        """Returns the body without those of the model's own sampling defaults that need an ability in `lacked`."""
        left_out = set(self.defaulted) & set(lacked)
        if "temperature" in left_out:  # the answer is then greedy, and only the penalty still changes it
            left_out = set(self.defaulted) - {"repetition_penalty"} | left_out
        if not left_out:
            return self
        plain: dict[str, Any] = {one.name: one.default for one in fields(Sampling) if one.name in left_out}
        remaining = tuple(name for name in self.defaulted if name not in left_out)
        return self.model_copy(update={"sampling": replace(self.sampling, **plain), "defaulted": remaining})

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns the ABILITIES that an engine needs to serve the request."""
        asked = {
            "response_format": self.format is not None or self.tool_choice.mode == "required",
            "pattern": self.format is not None and self.format.type in ("regex", "grammar"),
            "logprobs": self.top_logprobs is not None,
            "raw_prompt": self.raw,
            "tools": self.uses_tools,
            "prompt_logprobs": self.echo and self.top_logprobs is not None,
            "continue_final_message": self.continues,
            "reasoning": self.reasoning is not None or bool(self.template_variables),
            "format_after_thinking": self.answer_form.starts_with_thinking
            and (self.format is not None or self.tool_choice.mode == "required"),
        }
        return (*self.sampling.needs, *(ability for ability, is_asked in asked.items() if is_asked))


# All abilities that a request may need and that some engines lack.
ABILITIES = (
    *(field.name for field in fields(Sampling) if field.name not in EVERYWHERE),
    "response_format",
    "pattern",
    "logprobs",
    "raw_prompt",
    "tools",
    "prompt_logprobs",
    "continue_final_message",
    "reasoning",
    "format_after_thinking",
)


def stored_form(body: RequestBody) -> dict[str, Any]:
    """Returns the JSON object that a request's row stores."""
    return body.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def readable_body(stored: object) -> RequestBody:
    """Returns the body of a stored row, or one that asks for nothing if the row cannot be read."""
    try:
        return read_body(stored)
    except UnreadableBody:
        return RequestBody()


def read_body(stored: object) -> RequestBody:
    """Returns the body of a stored row; raises UnreadableBody."""
    try:
        return RequestBody.model_validate(stored)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UnreadableBody(where) from error
