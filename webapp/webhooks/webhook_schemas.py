"""Bodies, queries and answers of /v1/magnus/webhooks."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from models.webhooks.webhook_endpoints import EVENT_TYPES, LONGEST_URL, EventType
from models.webhooks.webhook_tables import WebhookDelivery, WebhookEndpoint
from webapp.field_types import Body, Text
from webapp.responses.response_objects import ApiObject

DAY_S = 86_400
LONGEST_OVERLAP_S = 7 * DAY_S


class CreateWebhook(Body):
    """POST /v1/magnus/webhooks."""

    url: Annotated[Text, Field(min_length=1, max_length=LONGEST_URL, description="Where events are posted: https://…")]
    events: Annotated[list[EventType], Field(min_length=1, max_length=len(EVENT_TYPES))] | None = Field(
        default=None, description="Which events; all if not given"
    )


class RotateQuery(BaseModel):
    """POST /v1/magnus/webhooks/{id}/rotate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_s: int = Field(
        default=DAY_S, ge=0, le=LONGEST_OVERLAP_S, description="Seconds for which the old secret signs, too"
    )


class DeliveriesQuery(BaseModel):
    """GET /v1/magnus/webhooks/{id}/deliveries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(default=20, ge=1, le=100)
    after: int | None = Field(default=None, ge=1, le=2**63 - 1, description="The last id of the page before")


class Webhook(ApiObject):
    """A webhook endpoint; its secret is shown when it is made or rotated, and never again."""

    id: str
    object: Literal["magnus.webhook"] = "magnus.webhook"
    url: str
    events: list[str]
    failures: int = Field(description="Attempts that failed in a row, until now")
    created_at: int
    old_secret_until: int | None = Field(description="The secret before the last rotation signs until then, too")
    secret: str | None = Field(default=None, description="Verifies `webhook-signature`: keep it")


class WebhookList(ApiObject):
    """A tenant's endpoints."""

    object: Literal["list"] = "list"
    data: list[Webhook]


class DeletedWebhook(ApiObject):
    """An endpoint that is no more."""

    id: str
    object: Literal["magnus.webhook"] = "magnus.webhook"
    deleted: Literal[True] = True


class Delivery(ApiObject):
    """An event on its way to an endpoint, or arrived there; `event` is its header `webhook-id`."""

    id: int
    object: Literal["magnus.webhook.delivery"] = "magnus.webhook.delivery"
    event: str
    type: str
    data_id: str = Field(description="The id of what the event is about")
    created_at: int
    state: Literal["waiting", "delivered", "given_up"]
    attempts: int
    next_attempt_at: float | None
    delivered_at: float | None
    last_status: int | None = Field(description="The last answer's HTTP status")
    last_error: str | None


class DeliveryList(ApiObject):
    """One page of deliveries, newest first."""

    object: Literal["list"] = "list"
    data: list[Delivery]
    has_more: bool


def shown_webhook(endpoint: WebhookEndpoint, secret: str | None = None) -> Webhook:
    """An endpoint as the API shows it."""
    return Webhook(
        id=endpoint.id,
        url=endpoint.url,
        events=endpoint.events,
        failures=endpoint.failures,
        created_at=int(endpoint.created_at.timestamp()),
        old_secret_until=int(endpoint.old_secret_until.timestamp()) if endpoint.old_secret_until else None,
        secret=secret,
    )


def shown_delivery(delivery: WebhookDelivery) -> Delivery:
    """A delivery as the API shows it."""
    arrived, waits = delivery.delivered_at, delivery.next_attempt_at
    return Delivery(
        id=delivery.id,
        event=delivery.event_id,
        type=delivery.type,
        data_id=delivery.object_id,
        created_at=int(delivery.event_at.timestamp()),
        state="delivered" if arrived else "waiting" if waits else "given_up",
        attempts=delivery.attempts,
        next_attempt_at=waits.timestamp() if waits else None,
        delivered_at=arrived.timestamp() if arrived else None,
        last_status=delivery.last_status,
        last_error=delivery.last_error,
    )
