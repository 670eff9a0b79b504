"""Stores new requests: several in one statement if they come together, so that one commit serves them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import manager_of_class

from models.client_requests import RequestView, read_views, select_views
from models.request_ids import RANDOM_DIGITS, random_part
from models.sql import run
from models.tables import RequestStatus, StoredRequest


class IdempotencyKeyReused(Exception):
    """The Idempotency-Key was used before with a different body."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"This Idempotency-Key belongs to {id}, which was made from a different body.")


@dataclass(frozen=True)
class NewRequest:
    """A validated request on its way into the database; lengths in tokens, `body` as `StoredRequest.body`."""

    tenant: str
    model: str
    application: str
    instructions: str
    input: str
    body: dict[str, Any]
    prompt_tokens: int
    input_tokens: int
    limit_tokens: int
    priority: int = 0
    deadline_s: float | None = None
    eta_s: float | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    forecast_s: float | None = None
    needs: tuple[str, ...] = ()  # abilities that its engine needs, by the names of the request's fields
    base: str | None = None  # if `model` is an adapter: the model whose workers serve it

    @property
    def served_by(self) -> str:
        """Returns the model whose workers serve it."""
        return self.base or self.model

    @cached_property
    def size_bytes(self) -> int:
        """Returns the bytes of its texts and of its body as JSON."""
        return len(self.instructions.encode()) + len(self.input.encode()) + len(to_json(self.body))


DURATIONS = ("deadline_s", "eta_s", "eta_low_s", "eta_high_s", "forecast_s")
# Fields of NewRequest that are columns of the same name; its durations become instants.
INSERTED_AS_GIVEN = tuple(field.name for field in fields(NewRequest) if field.name not in DURATIONS)
# The requests come as one JSON text: the driver takes 50 µs for twenty parameters. Those of one statement arrive a
# microsecond apart, in their order.
INSERT = f"""
    insert into requests (id, arrived_at, idempotency_key, idempotency_sha256, deadline_at, eta_at, eta_low_at,
        eta_high_at, forecast_s, {", ".join(INSERTED_AS_GIVEN)})
    select 'resp_' || lpad(to_hex((extract(epoch from arrived) * 1000000)::bigint), 14, '0') || random, arrived,
        idempotency_key, decode(idempotency_sha256, 'hex'), clock_timestamp() + make_interval(secs => deadline_s),
        clock_timestamp() + make_interval(secs => eta_s), clock_timestamp() + make_interval(secs => eta_low_s),
        clock_timestamp() + make_interval(secs => eta_high_s), forecast_s, {", ".join(INSERTED_AS_GIVEN)}
    from json_to_recordset(cast(:new as json)) as new (place int, random text, idempotency_key text,
        idempotency_sha256 text, deadline_s float8, eta_s float8, eta_low_s float8, eta_high_s float8,
        forecast_s float8, tenant text, model text, application text, instructions text, input text, body jsonb,
        prompt_tokens int, input_tokens int, limit_tokens int, priority int, needs text[], base text),
        lateral (select statement_timestamp() + place * interval '1 microsecond') as t (arrived)
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning id, arrived_at, deadline_at, eta_at, eta_low_at, eta_high_at, forecast_s
"""  # noqa: S608  # constants


def insert(connection: Connection, requests: Sequence[NewRequest]) -> list[RequestView]:
    """Stores all of these requests as queued, or none of them; returns them as stored."""
    return [stored for stored in _insert(connection, [_values(new) for new in requests]) if stored is not None]


def submit(
    connection: Connection, new: NewRequest, *, idempotency_key: str | None = None, digest: bytes | None = None
) -> RequestView:
    """Stores a request as queued and returns it; a second call with its idempotency key returns the first request.

    Raises IdempotencyKeyReused if the digests differ.
    """
    sha256 = None if digest is None else digest.hex()
    (stored,) = _insert(connection, [_values(new, idempotency_key=idempotency_key, idempotency_sha256=sha256)])
    if stored is not None:
        return stored
    same_key = (StoredRequest.tenant == new.tenant, StoredRequest.idempotency_key == idempotency_key)
    with Session(connection, expire_on_commit=False) as session:
        earlier = next(read_views(session, select_views(texts=True).where(*same_key)), None)
    if earlier is None:  # deleted between the two statements, so the key is free again
        return submit(connection, new, idempotency_key=idempotency_key, digest=digest)
    if earlier.request.idempotency_sha256 != digest:
        raise IdempotencyKeyReused(earlier.request.id)
    return earlier


def _values(new: NewRequest, **others: str | None) -> dict[str, Any]:
    return {name: getattr(new, name) for name in (*INSERTED_AS_GIVEN, *DURATIONS)} | others | {"random": random_part()}


def _insert(connection: Connection, values: Sequence[Mapping[str, Any]]) -> list[RequestView | None]:
    """Returns a view for each of these values, in their order; None where the idempotency key was used before."""
    numbered = [{**one, "place": place} for place, one in enumerate(values)]
    rows = run(connection, INSERT, {"new": to_json(numbered).decode()})
    inserted = {row.id[-RANDOM_DIGITS:]: row for row in rows}
    return [_view(one, inserted[one["random"]]) if one["random"] in inserted else None for one in values]


def _view(values: Mapping[str, Any], row: Any) -> RequestView:
    """Returns the view of an inserted row, whose object is made as a query makes one: its constructor takes 0.1 ms."""
    stored: StoredRequest = manager_of_class(StoredRequest).new_instance()
    given = {name: values[name] for name in INSERTED_AS_GIVEN}
    stored.__dict__.update(given, **row._asdict(), status=RequestStatus.queued, attempts=0)
    stored.__dict__.update(idempotency_key=values.get("idempotency_key"), needs=list(values["needs"]))
    return RequestView(stored, None, 0, row.arrived_at)
