"""Bodies and queries of /v1/responses: OpenAI's fields and ours in `magnus`. What cannot be honoured is refused."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag

from models.tables import RequestStatus
from protocol.api_objects import PageQuery, Query
from protocol.field_types import (
    TEXT_OR_LIST,
    AnswerLimit,
    AskedProgress,
    Body,
    HistoryBody,
    Metadata,
    Seed,
    StopStrings,
    Temperature,
    Text,
    TopP,
    by_type,
    only_beside,
)
from protocol.requests.options import (
    AskedTier,
    ResponseFormat,
    SamplingFields,
    TemplateVariables,
    TextFormat,
    ThinkingTokens,
    TopLogprobs,
)
from protocol.requests.tools import (
    MOST_PARTS,
    MOST_TOOLS,
    Arguments,
    CallId,
    ResponseTool,
    ResponseToolChoice,
    ToolName,
    stored_custom_call,
)
from request_body import Effort, StoredCall

MOST_ECHOED_LOGPROBS = 2**16  # log probabilities of one part: one for each token of its text. Not tuned
MOST_QUOTE_CHARACTERS = 1024  # an offer's id has about 300. Not tuned
# Answers carry these lists, and clients send answers back as a part of the next input.
ECHOED: dict[str, Any] = {"description": "Accepted as an answer carries it, not used"}


class TextPart(HistoryBody):
    """A piece of a message's text."""

    type: Literal["input_text", "output_text", "text"] = "input_text"
    text: Text
    role: Literal["user", "assistant", "system", "developer"] | None = Field(default=None, json_schema_extra=ECHOED)
    annotations: Annotated[list[Any] | None, Field(json_schema_extra=ECHOED, max_length=0)] = None
    logprobs: Annotated[list[Any] | None, Field(json_schema_extra=ECHOED, max_length=MOST_ECHOED_LOGPROBS)] = None


Content = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[list[TextPart], Field(min_length=1, max_length=MOST_PARTS), Tag("<list>")],
    TEXT_OR_LIST,
]


class RoleAndContent(HistoryBody):
    """Who wrote a message, and its content."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @property
    def text(self) -> str:
        """Returns the content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class Message(RoleAndContent):
    """One message; an answer's output item can be sent back as it came."""

    type: Literal["message"] = "message"
    id: Text | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class CallItem(HistoryBody):
    """What all calls in earlier answers have."""

    call_id: CallId
    name: ToolName
    id: Text | None = None
    status: ItemStatus | None = None


class CustomCallItem(CallItem):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    input: Text

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return stored_custom_call(self.call_id, self.name, self.input)


class FunctionCallItem(CallItem):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    arguments: Arguments

    @property
    def stored(self) -> StoredCall:
        """Returns the call as the request's row stores it."""
        return StoredCall(id=self.call_id, name=self.name, arguments=self.arguments)


class OutputPart(HistoryBody):
    """A piece of a result's text."""

    type: Literal["input_text", "output_text"]
    text: Text


class ReasoningText(HistoryBody):
    """A piece of an earlier answer's thinking."""

    type: Literal["reasoning_text", "summary_text"]
    text: Text


class ReasoningItem(HistoryBody):
    """An earlier answer's thinking, sent back as it came; it belongs to the answer or the calls that follow it."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MOST_PARTS)] | None = None
    summary: Annotated[list[ReasoningText], Field(max_length=MOST_PARTS)] | None = None
    id: Text | None = None
    status: ItemStatus | None = None
    encrypted_content: Text | None = Field(default=None, description="Accepted, not used: only OpenAI can read it")

    @property
    def text(self) -> str:
        """Returns the thoughts as one string."""
        return "".join(part.text for part in self.content or self.summary or ())


class FunctionOutputItem(HistoryBody):
    """The result of a call of a function or of a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Annotated[
        Annotated[Text, Tag("<text>")] | Annotated[list[OutputPart], Field(max_length=MOST_PARTS), Tag("<list>")],
        TEXT_OR_LIST,
    ]
    id: Text | None = None
    status: ItemStatus | None = None

    @property
    def text(self) -> str:
        """Returns the result as one string."""
        return self.output if isinstance(self.output, str) else "".join(part.text for part in self.output)


class ItemReference(HistoryBody):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"]
    id: Annotated[Text, Field(max_length=128)]


ITEM = by_type(
    "item",
    "must be of type message, reasoning, function_call, function_call_output, custom_tool_call, "
    "custom_tool_call_output or item_reference",
    default="message",
)

InputItem = Message | ReasoningItem | FunctionCallItem | CustomCallItem | FunctionOutputItem | ItemReference
Input = Annotated[
    Annotated[Text, Field(min_length=1), Tag("<text>")]
    | Annotated[
        list[
            Annotated[
                Annotated[Message, Tag("<message>")]
                | Annotated[ReasoningItem, Tag("<reasoning>")]
                | Annotated[FunctionCallItem, Tag("<function_call>")]
                | Annotated[CustomCallItem, Tag("<custom_tool_call>")]
                | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
                | Annotated[FunctionOutputItem, Tag("<custom_tool_call_output>")]
                | Annotated[ItemReference, Tag("<item_reference>")],
                ITEM,
            ]
        ],
        Field(min_length=1, max_length=1000),
        Tag("<list>"),
    ],
    TEXT_OR_LIST,
]


class TextOptions(Body):
    """OpenAI's `text` object."""

    format: ResponseFormat = TextFormat()
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Body):
    """OpenAI's `reasoning` object; an answer has the whole reasoning, and no summary of it."""

    effort: Effort | None = Field(
        default=None, description="How much the model shall think, where its chat template can say so; none: not at all"
    )
    max_tokens: ThinkingTokens | None = Field(default=None, description="As `thinking_token_budget`")
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


# The values of `include`: log probabilities, and parts of items that no answer of this service has.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]


class QueueExtras(Body):
    """Fields that OpenAI's API lacks, for the queue."""

    priority: int = Field(default=0, ge=-100, le=100, description="Higher goes first, where the policy honours it")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=30 * 86400,
        allow_inf_nan=False,
        description="Seconds from now by which the answer is of use",
    )
    best_effort: bool = Field(
        default=False, description="true: accepted even if the answer is unlikely to come within deadline_s"
    )


class Extras(QueueExtras):
    """Fields that OpenAI's API lacks."""

    landing: bool = Field(
        default=False, description="true: the answer ends with a sentence within the last tenth of its limit"
    )
    quote: Annotated[Text, Field(min_length=1, max_length=MOST_QUOTE_CHARACTERS)] | None = Field(
        default=None, description="The id of an offer of /v1/magnus/quotes for this body: it is accepted"
    )
    twins: bool = Field(default=True, description="false: computed by itself, even if an equal request waits or runs")
    top_k: int | None = Field(
        default=None, ge=0, le=2**31 - 1, description="Sample among the k likeliest tokens; 0: among all"
    )


class ResponseExtras(Extras):
    """Magnus's own fields of a response, with two for which the older calls have fields of their own."""

    seed: Seed | None = Field(default=None, description="Makes sampling repeatable")
    stop: StopStrings = Field(default=[], description="The answer ends before the first of these")


class StreamOptions(Body):
    """The options of any stream; streams are never obfuscated here."""

    include_progress: AskedProgress | None = Field(
        default=None,
        description="Magnus's: about once a second the tokens so far, and the tokens and seconds left with their "
        "intervals; `comment`: in a comment of the stream, which clients skip",
    )
    include_obfuscation: Literal[False] | None = None


def not_empty(value: str | list[InputItem]) -> str | list[InputItem]:
    """Returns the input; raises ValueError if it has only the assistant's texts and no call's result."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("must not be empty")
    elif not any(_asks(item) for item in value):
        raise ValueError("one item must be the user's, the system's, or the result of a call, and not be empty")
    elif isinstance(value[-1], CallItem):
        raise ValueError("the result of the last call is missing")
    return value


def _asks(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role != "assistant" and bool(item.text.strip())
    return isinstance(item, FunctionOutputItem | ItemReference)


Question = Annotated[Input, AfterValidator(not_empty)]


class CreateResponse(SamplingFields):
    """POST /v1/responses."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    input: Question = Field(description="The user input: a text, or items of which one is the user's or a result")
    instructions: Text | None = Field(
        default=None, description="What to do with the input; requests that share it alike"
    )
    max_output_tokens: AnswerLimit = Field(
        default=None, description="Most tokens of the answer; 1,024 if left out, or the service's own limit"
    )
    metadata: Metadata | None = Field(default=None, description="Echoed; `application` names the kind of request")
    background: bool | None = Field(default=None, description="true: answer at once with an id to poll; false: wait")
    temperature: Temperature | None = Field(
        default=None, description="0 is greedy, and the default unless the model has one"
    )
    top_p: TopP | None = None
    magnus: ResponseExtras = Field(default=ResponseExtras(), description="Fields that only Magnus has")

    # fields that OpenAI's clients may send; the allowed values are those that describe what Magnus does anyway
    store: bool | None = Field(default=None, description="false: its texts are deleted once it is answered")
    stream: bool | None = Field(default=None, description="true: server-sent events, token by token")
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None, description="auto: the oldest items are left out of a prompt that is too long"
    )
    service_tier: AskedTier = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="false: at most one call an answer")
    tools: Annotated[list[ResponseTool], Field(max_length=MOST_TOOLS)] | None = None
    max_tool_calls: None = None
    include: Annotated[list[Includable], Field(max_length=8)] | None = None
    top_logprobs: TopLogprobs | None = Field(default=None, description="Likeliest tokens at each place of the answer")
    text: TextOptions | None = Field(default=None, description="`format`: text, or JSON where the engine can do it")
    previous_response_id: Annotated[Text, Field(max_length=128)] | None = Field(
        default=None, description="The conversation of that response goes on, with instructions of its own"
    )
    conversation: None = None
    prompt: None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    client_metadata: Annotated[dict[Text, Any], Field(max_length=64)] | None = None

    @property
    def asked_logprobs(self) -> int | None:
        """Returns how many of the likeliest tokens are wanted at each place, or None without log probabilities."""
        asked = "message.output_text.logprobs" in (self.include or ()) or self.top_logprobs
        return (self.top_logprobs or 0) if asked else None


StreamPlace = Annotated[int, Field(ge=0, le=2**53)]


class RetrieveQuery(Query):
    """GET /v1/responses/{id}."""

    stream: bool = Field(default=False, description="true: the answer as server-sent events, from its beginning")
    starting_after: Annotated[StreamPlace, only_beside("stream", True, "only with stream=true")] | None = Field(
        default=None, description="For a stream: only events after the one with this sequence number"
    )
    include_progress: AskedProgress = Field(default=False, description="For a stream: as in stream_options")
    include_obfuscation: Literal["false"] | None = None
    include: Includable | None = Field(
        default=None,
        alias="include[]",
        description="Accepted: log probabilities are always there if they were asked for",
    )


class ListQuery(PageQuery):
    """GET /v1/responses."""

    status: RequestStatus | None = Field(default=None, description="Only responses in this state")
    application: Annotated[Text, Field(max_length=512)] | None = Field(
        default=None, description="Only of this application"
    )
    order: Literal["asc", "desc"] = Field(default="desc", description="By arrival; desc: newest first")
