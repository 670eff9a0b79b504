"""The body and the answer of /v1/magnus/quotes: a call's body as it would be submitted, or a file, and its offers."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Discriminator, Field, RootModel, Tag

from protocol.api_objects import ApiObject
from protocol.bulk.bulk_schemas import QuoteBatch
from protocol.chat.chat_schemas import CreateChatCompletion, CreateCompletion
from protocol.responses.response_schemas import CreateResponse
from scheduling.request import ServiceTier


def call_of(body: object) -> str | None:
    """Returns the tag of the call that a body is for, by the field that has its prompt."""
    fields = body if isinstance(body, dict) else ()
    return next((f"<{name}>" for name in ("messages", "prompt", "input", "input_file_id") if name in fields), None)


class CreateQuote(
    RootModel[
        Annotated[
            Annotated[CreateChatCompletion, Tag("<messages>")]
            | Annotated[CreateCompletion, Tag("<prompt>")]
            | Annotated[CreateResponse, Tag("<input>")]
            | Annotated[QuoteBatch, Tag("<input_file_id>")],
            Discriminator(
                call_of,
                custom_error_type="call",
                custom_error_message="The body must be a chat's, with messages, a completion's, with prompt, "
                "a response's, with input, or a batch's, with input_file_id and endpoint",
            ),
        ]
    ]
):
    """POST /v1/magnus/quotes: the body of a chat, a completion or a response with one answer, or a batch's file."""


class Offer(ApiObject):
    """A tier, the time by which the answer comes, or the batch ends, with some probability, and the price."""

    id: str = Field(description="Accepts the offer, as `magnus.quote` of the same body or of the file's batch")
    object: Literal["magnus.offer"] = "magnus.offer"
    service_tier: ServiceTier = Field(description="In which a call that accepts the offer is served")
    within_s: float | None = Field(description="Seconds from the call to its answer; null: no time is promised")
    probability: float | None = Field(description="The share of such promises that are kept")
    price: float | None = Field(description="In the operator's currency; null without MAGNUS_PRICES")


class Quote(ApiObject):
    """The offers for one body, and the work that it is expected to be; null while a value is unknown."""

    object: Literal["magnus.quote"] = "magnus.quote"
    model: str
    expires_at: float = Field(description="As a Unix time; until then an offer can be accepted, once")
    prompt_tokens: int
    expected_tokens: float | None = Field(description="Of the answer; of a batch: of all answers")
    gpu_seconds: float | None = Field(
        description="As the usage counts them, at the tenant's seconds a token since yesterday"
    )
    gpu_seconds_low: float | None = Field(description="Nine of ten answers have a length between both bounds")
    gpu_seconds_high: float | None
    data: list[Offer] = Field(description="Empty while nothing is known of the queue and there are no prices")


class KeptPromises(ApiObject):
    """Promises whose time is over: how many there were, how many were kept, and what broke the others."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    hour: float | None = Field(description="The hour in which they were due, as a Unix time; null: the whole window")
    service_tier: str | None = Field(description="null: all tiers")
    probability: float = Field(description="Of the promises; the mean if they have several")
    sold: int
    kept: int
    kept_share: float
    error: float = Field(description="The share's standard error if each promise is kept with its probability")
    short: bool = Field(description="Whether fewer were kept than two errors below the probability, of 20 or more")
    longer_answer: int = Field(description="Missed: an answer of the expected length would have come in time")
    lost_worker: int = Field(description="Missed: a worker was lost between the call and its answer")
    failed: int = Field(description="Missed: there was no answer")
    later_arrivals: int = Field(description="Missed: other work came first, by its order or in a burst")
    unexplained: int = Field(description="Missed: their requests have not ended yet, or were deleted")


class PromiseReport(ApiObject):
    """The promise book of the key's tenant, or of all tenants."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    object: Literal["magnus.promises"] = "magnus.promises"
    day: list[KeptPromises] = Field(description="The last day, by probability and tier, and by probability alone")
    week: list[KeptPromises]
    worst_hour: KeptPromises | None = Field(
        description="The hour of the week with the most missed promises beyond those that were expected"
    )
