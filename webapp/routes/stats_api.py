"""/v1/magnus/stats: figures of the whole service in a window of time. They show no tenant's data."""

import time
from dataclasses import asdict
from typing import Annotated, Literal

from apiflask import APIBlueprint
from pydantic import Field

from models.operations.operator_overview import what_is_missing
from models.operations.window_stats import window_stats
from models.registered_workers import registered_workers
from protocol.api_objects import ApiObject, Query
from protocol.client_errors import InvalidRequest
from webapp.context.app_context import current_context

# A call reads every batch of its window; a large fleet serves some millions of batches a day. Not tuned.
WIDEST_S = 86_400.0
LATEST = 4e9  # Unix time, the year 2096; any value whose milliseconds a double and a timestamp can hold does

api = APIBlueprint("stats", __name__, url_prefix="/v1/magnus", tag="Magnus")

Instant = Annotated[float, Field(ge=0, le=LATEST, allow_inf_nan=False)]


class StatsQuery(Query):
    """The query of GET /v1/magnus/stats."""

    since: Instant | None = Field(default=None, description="Unix time; a minute ago if not given")
    until: Instant | None = Field(default=None, description="Unix time; now if not given")


class WorkerModel(ApiObject):
    """The model of a worker that can load several."""

    worker: str
    model: str = Field(description="The model that it has loaded")
    changes_to: str | None = Field(description="The model that it was told to load; null if none")
    loadable: dict[str, float] = Field(description="The models that it can load, with the seconds of a change to each")
    changes: int = Field(description="Changes since its process started")


class ServiceStats(ApiObject):
    """Figures of all batches that began in the window and have ended, whoever sent their requests."""

    object: Literal["magnus.stats"] = "magnus.stats"
    now: float = Field(description="The database's clock, Unix time")
    since: float
    until: float
    policy: str | None = Field(description="The scheduling policy in force")
    queued: int = Field(description="Requests that wait, now")
    in_progress: int = Field(description="Requests in a batch, now")
    open_batches: int = Field(description="Batches that are assigned or running, now")
    batches: int
    mean_batch_size: float | None = Field(description="Rows that a worker decoded together, on average over time")
    valid_tokens: int = Field(description="Generated before the end of an answer")
    invalid_tokens: int = Field(description="Generated after it, while the rest of the batch went on")
    pad_tokens: int = Field(description="Computed to make prompts of one batch equally long")
    workers: int = Field(description="Workers that were there in the window")
    workers_alive: int = Field(description="Workers with a fresh heartbeat, now")
    missing: list[str] = Field(description="What keeps requests from being served as usual, now; empty if nothing")
    models: list[WorkerModel] = Field(description="Living workers that can load several models")
    worker_idle_share: float | None = Field(description="Share of the workers' time in which they were idle")


@api.get("/stats")
@api.input(StatsQuery, location="query")
@api.output(ServiceStats)
@api.doc(summary="What the service did in a window of time", security="ApiKey", responses=[400, 401, 403, 429, 503])
def service_stats(query_data: StatsQuery) -> ServiceStats:
    """Returns batches, tokens and the idle share of workers in a window of at most a day."""
    last = min(time.time() if query_data.until is None else query_data.until, time.time())
    if query_data.since is not None and last - query_data.since > WIDEST_S:
        raise InvalidRequest(
            f"Invalid 'since': a window may be {WIDEST_S:,.0f} s wide. Ask for several windows.", param="since"
        )
    with current_context().sessions() as session:
        window = window_stats(session, query_data.since, query_data.until)
        alive_s = current_context().worker_alive_s
        missing = what_is_missing(session, alive_s)
        alive = [one for one in registered_workers(session.connection(), alive_s) if one.lives(alive_s)]
        models = [
            WorkerModel(
                worker=one.name,
                model=one.model,
                changes_to=one.wanted_model if one.state(alive_s) == "changing" else None,
                loadable={name: model.change_s for name, model in one.loadable.items()},
                changes=one.facts.model_changes,
            )
            for one in alive
            if one.loadable
        ]
    return ServiceStats(**asdict(window), workers_alive=len(alive), missing=missing, models=models)
