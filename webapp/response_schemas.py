"""Bodies and queries of /v1/responses as clients send them: OpenAI's fields, and ours in one `magnus` object.

An option that Magnus cannot honour is refused by name, never ignored in silence.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator

from models.tables import RequestStatus
from webapp.field_types import Body, Metadata, Seed, StopStrings, Temperature, Text, TopP

# Answers carry these empty lists, and clients send answers back as a part of the next input.
ECHOED: dict[str, Any] = {"description": "Accepted as an answer carries it, not used"}


class TextPart(Body):
    """A piece of a message's text."""

    type: Literal["input_text", "output_text", "text"] = "input_text"
    text: Text
    annotations: Annotated[list[Any] | None, Field(json_schema_extra=ECHOED, max_length=0)] = None
    logprobs: Annotated[list[Any] | None, Field(json_schema_extra=ECHOED, max_length=0)] = None


def text_or_list(value: object) -> str | None:
    """The tag of the union's branch that a value belongs to, so that an error names the field and not every branch."""
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


TEXT_OR_LIST = Discriminator(
    text_or_list, custom_error_type="text_or_list", custom_error_message="must be a text or a list"
)
Content = Annotated[
    Annotated[Text, Tag("<text>")] | Annotated[list[TextPart], Field(min_length=1), Tag("<list>")], TEXT_OR_LIST
]


class RoleAndContent(Body):
    """Who wrote a message, and its content."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class Message(RoleAndContent):
    """One message; an answer's output item can be sent back as it came."""

    type: Literal["message"] = "message"
    id: Text | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class TextFormat(Body):
    """Plain text is what there is."""

    type: Literal["text"] = "text"


class TextOptions(Body):
    """OpenAI's `text` object."""

    format: TextFormat = TextFormat()


class Extras(Body):
    """What OpenAI's API has no field for."""

    priority: int = Field(default=0, ge=-100, le=100, description="Higher goes first, where the policy honours it")
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        le=30 * 86400,
        allow_inf_nan=False,
        description="Seconds from now by which the answer is of use",
    )
    top_k: int = Field(default=0, ge=0, le=2**31 - 1, description="Sample among the k likeliest tokens; 0: among all")


class ResponseExtras(Extras):
    """In /v1/responses these are ours too; the older calls have fields for them."""

    seed: Seed | None = Field(default=None, description="Makes sampling repeatable")
    stop: StopStrings = Field(default=[], description="The answer ends before the first of these")


class NoObfuscation(Body):
    """OpenAI's only option of a stream; there is nothing to obfuscate here."""

    include_obfuscation: Literal[False] | None = None


class CreateResponse(Body):
    """POST /v1/responses."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    input: Annotated[
        Annotated[Text, Field(min_length=1), Tag("<text>")]
        | Annotated[list[Message], Field(min_length=1, max_length=1000), Tag("<list>")],
        TEXT_OR_LIST,
    ] = Field(description="The user input: a text, or messages of which the last is the user's")
    instructions: Text | None = Field(
        default=None, description="What to do with the input; requests that share it alike"
    )
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="Most tokens of the answer; the service's own limit"
    )
    metadata: Metadata | None = Field(default=None, description="Echoed; `application` names the kind of request")
    background: bool | None = Field(default=None, description="true: answer at once with an id to poll; false: wait")
    temperature: Temperature | None = Field(default=None, description="0, the default here, is greedy")
    top_p: TopP | None = None
    magnus: ResponseExtras = Field(default=ResponseExtras(), description="What is Magnus's own")

    # fields that OpenAI's clients may send, each with the values that ask for nothing else than what Magnus does
    store: Literal[True] | None = None
    stream: bool | None = Field(default=None, description="true: server-sent events, token by token")
    stream_options: NoObfuscation | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    include: Annotated[list[Any], Field(max_length=0)] | None = None
    text: TextOptions | None = None
    user: Annotated[Text, Field(max_length=512)] | None = None
    previous_response_id: None = None
    conversation: None = None
    reasoning: None = None

    @field_validator("input")
    @classmethod
    def refuse_an_empty_question(cls, value: str | list[Message]) -> str | list[Message]:
        """Refuse input that is only white space, and a conversation that does not end with the user."""
        if isinstance(value, str):
            if not value.strip():
                raise ValueError("must not be empty")
        elif value[-1].role != "user":
            raise ValueError("the last message must be the user's")
        elif not value[-1].text.strip():
            raise ValueError("the last message must not be empty")
        return value


class RetrieveQuery(BaseModel):
    """GET /v1/responses/{id}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: bool = Field(default=False, description="true: the answer as server-sent events, from its beginning")
    starting_after: int | None = Field(
        default=None, ge=0, le=2**53, description="Of a stream: only events after the one with this sequence number"
    )
    include_obfuscation: Literal["false"] | None = None

    @field_validator("starting_after")
    @classmethod
    def refuse_a_position_of_no_stream(cls, value: int | None, others: ValidationInfo) -> int | None:
        """Refuse a position without a stream."""
        if value is not None and not others.data.get("stream"):
            raise ValueError("only with stream=true")
        return value


class ListQuery(BaseModel):
    """GET /v1/responses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: RequestStatus | None = Field(default=None, description="Only responses in this state")
    application: Annotated[Text, Field(max_length=512)] | None = Field(
        default=None, description="Only of this application"
    )
    limit: int = Field(default=20, ge=1, le=100, description="Most entries of a page")
    after: Text | None = Field(default=None, description="The last id of the page before")
    order: Literal["asc", "desc"] = Field(default="desc", description="By arrival; desc: newest first")
