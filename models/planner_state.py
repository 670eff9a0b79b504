"""The inputs that a planner reads before each step: rows of `service_state`, such as the policy in force."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json
from sqlalchemy import Connection

from models.connections.sql import run, text
from scheduling.rank_correlation import RankCorrelation


@dataclass(frozen=True, slots=True)
class PlannerInputs:
    """The planner's inputs of one step; instants and ages by the database's clock."""

    now: float
    policy: str | None  # None: no policy was set, the planner's default is in force
    predictor_silent_s: float | None  # seconds since a predictor's last heartbeat; None before the first
    rank_correlation: RankCorrelation  # what recent answers say about predictions and prompts
    serving_time_version: str | None  # the serving time estimator in service
    weights: Mapping[str, float] = field(default_factory=dict)  # the tenants' weights other than 1
    paused: bool = False  # whether an operator has paused planning: then nothing is assigned


def next_epoch(connection: Connection) -> int:
    """Draws an epoch above all earlier ones; with it, `fetch_new_requests` returns every queued request again."""
    return int(connection.execute(text("select nextval('planner_epochs')")).scalar_one())


def planner_inputs(connection: Connection) -> PlannerInputs:
    """Reads the clock, the policy in force, the predictor's state and the version of the serving time estimator."""
    (row,) = run(
        connection,
        """
            select extract(epoch from clock_timestamp())::float8 as now,
                max(value->>'name') filter (where name = 'policy') as policy,
                extract(epoch from clock_timestamp() - max(updated_at) filter (where name = 'predictor'))::float8
                    as predictor_silent_s,
                max((value->>'tau')::float8) filter (where name = 'prediction') as tau,
                coalesce(bool_and((value->>'by_prompts')::bool) filter (where name = 'prediction'), true) as by_prompts,
                coalesce(bool_or((value->>'paused')::bool) filter (where name = 'pause'), false) as paused,
                (select version from model_versions where kind = 'serving_time' and active) as serving_time_version,
                (select coalesce(jsonb_object_agg(name, weight), '{}') from tenants where weight <> 1) as weights
            from service_state where name in ('policy', 'predictor', 'prediction', 'pause')
        """,
    )
    read = row._asdict()
    return PlannerInputs(rank_correlation=RankCorrelation(read.pop("tau"), read.pop("by_prompts")), **read)


def set_policy(connection: Connection, name: str) -> None:
    """Puts a policy in force; at its next step the planner switches to it and feeds it every queued request."""
    write_service_state(connection, "policy", {"name": name})


def write_service_state(connection: Connection, name: str, value: Mapping[str, Any] | BaseModel) -> None:
    """Insert or replace the row `name` of `service_state`, with the database's time."""
    run(
        connection,
        """
            insert into service_state (name, value, updated_at) values (:name, cast(:value as jsonb), clock_timestamp())
            on conflict (name) do update set value = excluded.value, updated_at = excluded.updated_at
        """,
        {"name": name, "value": to_json(value).decode()},
    )


def read_service_state(connection: Connection, name: str, within_s: float) -> Any:
    """Return the value of the row `name` of `service_state`, or None if it was not written within these seconds."""
    fresh = "updated_at > clock_timestamp() - make_interval(secs => :within_s)"
    statement = text(f"select value from service_state where name = :name and {fresh}")  # noqa: S608  # a constant
    return connection.execute(statement, {"name": name, "within_s": within_s}).scalar_one_or_none()
