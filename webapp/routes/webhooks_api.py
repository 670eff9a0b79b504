"""/v1/magnus/webhooks: a tenant's endpoints for events about ended responses. The process `chores` sends the events."""

import re
from typing import Annotated, Literal

from apiflask import APIBlueprint
from pydantic import Field

from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_endpoints import EVENT_TYPES, EventType
from models.webhooks.webhook_tables import WebhookDelivery, WebhookEndpoint
from models.webhooks.webhook_urls import LONGEST_URL, UnusableUrl, check_url
from protocol.api_objects import ApiObject, DeletedObject, Query
from protocol.client_errors import InvalidRequest, NotFound
from protocol.field_types import Body, Text
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant

DAY_S = 86_400
LONGEST_OVERLAP_S = 7 * DAY_S

ENDPOINT_ID = re.compile(r"we_[0-9a-f]{32}")
LARGEST_ID = 2**63 - 1
api = APIBlueprint("webhooks", __name__, url_prefix="/v1/magnus/webhooks", tag="Webhooks")


class CreateWebhook(Body):
    """POST /v1/magnus/webhooks."""

    url: Annotated[Text, Field(min_length=1, max_length=LONGEST_URL, description="Where events are posted: https://…")]
    events: Annotated[list[EventType], Field(min_length=1, max_length=len(EVENT_TYPES))] | None = Field(
        default=None, description="Which events; all if not given"
    )


class RotateQuery(Query):
    """POST /v1/magnus/webhooks/{id}/rotate."""

    overlap_s: int = Field(
        default=DAY_S, ge=0, le=LONGEST_OVERLAP_S, description="Seconds for which the old secret signs, too"
    )


class DeliveriesQuery(Query):
    """GET /v1/magnus/webhooks/{id}/deliveries."""

    limit: int = Field(default=20, ge=1, le=100)
    after: int | None = Field(default=None, ge=1, le=LARGEST_ID, description="The last id of the page before")


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


class DeletedWebhook(DeletedObject):
    """A deleted endpoint."""

    object: Literal["magnus.webhook"] = "magnus.webhook"


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
    """Returns an endpoint as the API shows it."""
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
    """Returns a delivery as the API shows it."""
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


@api.post("")
@api.input(CreateWebhook)
@api.output(Webhook)
@api.doc(summary="Register a webhook endpoint", security="ApiKey", responses=[400, 401, 403, 413, 429, 503])
def create(json_data: CreateWebhook) -> Webhook:
    """Stores an endpoint: events from now on are posted to it, signed with the secret that only this answer shows.

    Signatures and headers are those of Standard Webhooks; the `openai` client's `webhooks.unwrap` reads them.
    """
    context = current_context()
    try:
        check_url(json_data.url, context.private_webhooks)
    except UnusableUrl as error:
        raise InvalidRequest(f"Invalid 'url': it {error}.", param="url") from error
    events = json_data.events or webhook_endpoints.EVENT_TYPES
    with context.sessions() as session:
        try:
            endpoint = webhook_endpoints.create(session, current_tenant(), json_data.url, events)
        except webhook_endpoints.TooManyEndpoints as error:
            raise InvalidRequest(str(error), code="too_many_webhooks") from error
    return shown_webhook(endpoint, endpoint.secret)


@api.get("")
@api.output(WebhookList)
@api.doc(summary="List webhook endpoints", security="ApiKey", responses=[401, 403, 429, 503])
def list_() -> WebhookList:
    """Lists the tenant's endpoints, oldest first, without their secrets."""
    with current_context().sessions() as session:
        endpoints = webhook_endpoints.list_endpoints(session, current_tenant())
    return WebhookList(data=[shown_webhook(endpoint) for endpoint in endpoints])


@api.post("/<id>/rotate")
@api.input(RotateQuery, location="query")
@api.output(Webhook)
@api.doc(summary="Give a webhook endpoint a new secret", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def rotate(id: str, query_data: RotateQuery) -> Webhook:
    """Makes a new secret; for `overlap_s` seconds, events carry signatures by the old secret and by the new one."""
    require_endpoint_id(id)
    with current_context().sessions() as session:
        endpoint = webhook_endpoints.rotate(session, current_tenant(), id, query_data.overlap_s)
    if endpoint is None:
        raise webhook_not_found(id)
    return shown_webhook(endpoint, endpoint.secret)


@api.delete("/<id>")
@api.output(DeletedWebhook)
@api.doc(summary="Delete a webhook endpoint", security="ApiKey", responses=[401, 403, 404, 429, 503])
def delete(id: str) -> DeletedWebhook:
    """Removes an endpoint: nothing is sent to it any more, not even events that were waiting."""
    require_endpoint_id(id)
    with current_context().sessions() as session:
        if not webhook_endpoints.remove(session, current_tenant(), id):
            raise webhook_not_found(id)
    return DeletedWebhook(id=id)


@api.get("/<id>/deliveries")
@api.input(DeliveriesQuery, location="query")
@api.output(DeliveryList)
@api.doc(
    summary="List the deliveries of a webhook endpoint", security="ApiKey", responses=[400, 401, 403, 404, 429, 503]
)
def deliveries(id: str, query_data: DeliveriesQuery) -> DeliveryList:
    """Lists an endpoint's deliveries, newest first."""
    require_endpoint_id(id)
    with current_context().sessions() as session:
        found = webhook_deliveries.page(
            session, current_tenant(), id, limit=query_data.limit + 1, after=query_data.after
        )
    if found is None:
        raise webhook_not_found(id)
    data = [shown_delivery(one) for one in found]
    return DeliveryList(data=data[: query_data.limit], has_more=len(data) > query_data.limit)


@api.post("/<id>/deliveries/<delivery>/redeliver")
@api.output(Delivery)
@api.doc(summary="Send an event again", security="ApiKey", responses=[401, 403, 404, 429, 503])
def redeliver(id: str, delivery: str) -> Delivery:
    """Sends the event now, under the same `webhook-id`, whether it had arrived or not."""
    require_endpoint_id(id)
    number = int(delivery) if re.fullmatch(r"[0-9]{1,19}", delivery) else 0
    found = None
    if 0 < number <= LARGEST_ID:
        with current_context().sessions() as session:
            found = webhook_deliveries.redeliver(session, current_tenant(), id, number)
    if found is None:
        raise NotFound(f"No delivery '{delivery[:20]}' of webhook '{id}'.", param="delivery", code="delivery_not_found")
    return shown_delivery(found)


def require_endpoint_id(id: str) -> None:
    """Raises NotFound for a malformed id, so that it never reaches the database."""
    if not ENDPOINT_ID.fullmatch(id):
        raise webhook_not_found(id)


def webhook_not_found(id: str) -> NotFound:
    """Returns the error for an id that this tenant does not have."""
    return NotFound(f"Webhook with id '{id[:80]}' not found.", param="id", code="webhook_not_found")
