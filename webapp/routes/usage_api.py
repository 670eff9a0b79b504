"""/v1/magnus/usage: the usage of the key's tenant, or of every tenant for a key with the scope `operate`."""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import current_app, request
from pydantic import BeforeValidator, ConfigDict, Field

from models.tenants.api_keys import Scope
from models.tenants.usage import DIMENSIONS, TenantUsage, used
from protocol.api_objects import ApiObject, Query
from protocol.client_errors import InvalidRequest
from protocol.csv_tables import as_csv
from webapp.context.app_context import current_context
from webapp.context.auth import current_caller

WIDEST_DAYS = 366  # a row for each day, tenant and model: a year of them is what an invoice needs. Not tuned.
USUAL_DAYS = 30
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

api = APIBlueprint("usage", __name__, url_prefix="/v1/magnus", tag="Magnus")


def iso_date(value: object) -> object:
    """Refuses other values that Pydantic accepts as a date, such as a number of seconds."""
    if isinstance(value, str) and not ISO_DATE.fullmatch(value):
        raise ValueError("write a date as YYYY-MM-DD")
    return value


Day = Annotated[date, BeforeValidator(iso_date)]


class UsageQuery(Query):
    """GET /v1/magnus/usage."""

    first: Day | None = Field(default=None, alias="from", description="First day, UTC; 30 days until `to` if not given")
    last: Day | None = Field(default=None, alias="to", description="Last day, included; today if not given")
    by: str = Field(
        default="day,tenant,model",
        pattern=r"^(day|tenant|model|tier)(,(day|tenant|model|tier)){0,3}$",
        description="What the sums are grouped by; a tier is priority, default, flex, or batch",
    )
    format: Literal["json", "csv"] | None = Field(default=None, description="As `Accept` says if not given")


class UsageSum(ApiObject):
    """The usage of one group; the dimensions that it is not grouped by are null."""

    day: date | None
    tenant: str | None
    model: str | None
    requests: int = Field(description="Those that a worker ended: answered, cut off at their limit, or cancelled")
    prompt_tokens: int
    answer_tokens: int
    gpu_seconds: float = Field(description="A worker's seconds, divided among the rows that it served at the time")
    tier: str | None


class UsageReport(ApiObject):
    """The usage of a tenant in whole days."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    object: Literal["magnus.usage"] = "magnus.usage"
    first: date = Field(alias="from")
    last: date = Field(alias="to")
    data: list[UsageSum]


@api.get("/usage")
@api.input(UsageQuery, location="query")
@api.output(UsageReport)
@api.doc(summary="What was used", security="ApiKey", responses=[400, 401, 403, 429, 503])
def usage(query_data: UsageQuery) -> UsageReport | FlaskResponse:
    """Returns requests, tokens and GPU-seconds: of the key's tenant or, with the scope `operate`, of every tenant."""
    last = query_data.last or datetime.now(UTC).date()
    first = query_data.first or date.fromordinal(max(1, last.toordinal() - USUAL_DAYS + 1))
    if not 0 <= (last - first).days < WIDEST_DAYS:
        raise InvalidRequest(f"Invalid 'from': ask for 1 to {WIDEST_DAYS} days at once.", param="from")
    caller = current_caller()
    tenant = None if Scope.operate in caller.scopes else caller.tenant
    by = tuple(name for name in DIMENSIONS if name in query_data.by.split(","))
    with current_context().sessions() as session:
        sums = [shown(one) for one in used(session, tenant, first, last, by)]
    prefers_csv = request.accept_mimetypes.best_match(["application/json", "text/csv"]) == "text/csv"
    if query_data.format == "csv" or (query_data.format is None and prefers_csv):
        table: list[list[object]] = [list(UsageSum.model_fields), *(list(one.model_dump().values()) for one in sums)]
        return current_app.response_class(as_csv(table), content_type="text/csv; charset=utf-8")
    return UsageReport(first=first, last=last, data=sums)


def shown(one: TenantUsage) -> UsageSum:
    """Returns one group's sums as the API shows them."""
    return UsageSum(
        day=one.day,
        tenant=one.tenant,
        model=one.model,
        requests=one.requests,
        prompt_tokens=one.prompt_tokens,
        answer_tokens=one.answer_tokens,
        gpu_seconds=round(one.gpu_s, 3),
        tier=one.tier,
    )
