"""Stores new requests: several in one statement if they come together, so that one commit serves them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Connection
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import manager_of_class

from models.client_requests import RequestView, read_views, select_views
from models.connections.sql import run
from models.promise_tables import Promise, StoredPromise
from models.request_ids import RANDOM_DIGITS, random_part
from models.tables import RequestKind, RequestStatus, StoredRequest
from scheduling.request import ServiceTier, level_of

# Codes of failures that are the service's fault. After one, a repeat with the same Idempotency-Key makes a new request.
TRIED_AGAIN = frozenset({"server_error", "deadline_exceeded", "unschedulable", "out_of_memory"})
REFUSED_BY_ENGINE = "refused_by_engine"  # the code of a failure that is the request's: its engine can never answer it
WRITTEN_WITHIN = timedelta(seconds=10)  # an answer is written some time after its end, at most this. Not tuned
FREE_KEY = "update requests set idempotency_key = null where id = :id"
SELL = """
    insert into promises (request_id, quote, tenant, tier, probability, price, tokens, sold_at, promised_by, look_at)
    values (:request_id, :quote, :tenant, :tier, :probability, :price, :tokens, :sold_at, :promised_by, :look_at)
    on conflict (quote) do nothing returning request_id
"""


class IdempotencyKeyReused(Exception):
    """The Idempotency-Key was used before with a different body."""

    def __init__(self, id: str) -> None:
        super().__init__(f"This Idempotency-Key belongs to {id}, which was made from a different body.")


class QuoteUsed(Exception):
    """This quote was accepted before, and each is accepted once: ask for another one."""

    def __init__(self) -> None:
        super().__init__(QuoteUsed.__doc__)


@dataclass(frozen=True, slots=True)
class SubmissionEta:
    """Seconds from a request's arrival to its answer: the forecast, the ETA corrected by earlier errors, its interval.

    Nine of ten answers should come between `low_s` and `high_s`, which are None while too few errors are known.
    """

    forecast_s: float
    eta_s: float
    low_s: float | None = None
    high_s: float | None = None
    third: int | None = None  # the third of the recent answers' lengths to which its own expected length belongs


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request counts until its end against its tenant's limits of expected work, and the work done so far."""

    tokens: int  # that its answer should have
    assumed: bool = False  # whether its prediction replaces them: its application has too few answers yet
    token_gpu_s: float | None = None  # GPU-seconds a token of its model's latest answers for the tenant; None: unknown
    gpu_s: float = 0.0  # used so far, as workers measured them


@dataclass(frozen=True)
class NewRequest:
    """A validated request that is not stored yet; its `body` is what `StoredRequest.body` will hold."""

    tenant: str
    model: str
    application: str
    instructions: str
    input: str
    body: dict[str, Any]
    prompt_tokens: int
    input_tokens: int
    limit_tokens: int
    kind: RequestKind = "answer"
    tier: ServiceTier = "default"
    priority: int = 0
    deadline_s: float | None = None  # seconds from its arrival to its deadline
    eta: SubmissionEta | None = None
    needs: tuple[str, ...] = ()  # abilities that its engine must have, named as the request's fields
    base: str | None = None  # the model whose workers serve the adapter `model`; None if `model` is no adapter
    job_id: str | None = None  # the bulk job whose line it is
    deadline_at: datetime | None = None  # the deadline of a bulk job's line, which is an instant
    charge: Charge | None = None  # None: its tenant has no limits of expected work
    computation: bytes | None = None  # digest of all that decides its answer; None: it shares no computation
    promise: Promise | None = None  # of an accepted quote; `submit` alone stores it

    @property
    def served_by(self) -> str:
        """Returns the model whose workers serve the request."""
        return self.base or self.model

    @property
    def level(self) -> int:
        """Returns tier and priority as one number, as policies see them."""
        return level_of(self.tier, self.priority)

    @cached_property
    def size_bytes(self) -> int:
        """Returns the bytes of its texts and of its body as JSON."""
        return len(self.instructions.encode()) + len(self.input.encode()) + len(to_json(self.body))


FIELDS = tuple(field.name for field in fields(NewRequest) if field.name not in ("computation", "promise"))
GIVEN = tuple(name for name in FIELDS if name not in ("deadline_s", "deadline_at"))  # names of columns
COLUMNS = ", ".join(GIVEN)
# One JSON parameter holds all requests, because the driver takes 50 µs for twenty parameters. The statement gives its
# requests arrival times a microsecond apart, in their order.
INSERT = f"""
    insert into requests (id, arrived_at, idempotency_key, idempotency_sha256, twin_sha256, deadline_at, {COLUMNS})
    select 'resp_' || lpad(to_hex((extract(epoch from arrived) * 1000000)::bigint), 14, '0') || random, arrived,
        idempotency_key, decode(idempotency_sha256, 'hex'), decode(twin_sha256, 'hex'),
        coalesce(deadline_at, clock_timestamp() + make_interval(secs => deadline_s)), {COLUMNS}
    from json_to_recordset(cast(:new as json)) as new (place int, random text, idempotency_key text,
        idempotency_sha256 text, twin_sha256 text, deadline_s float8, deadline_at timestamptz, tenant text, model text,
        application text, instructions text, input text, body jsonb, prompt_tokens int, input_tokens int,
        limit_tokens int, kind text, tier service_tier, priority int, eta jsonb, needs text[], base text, job_id text,
        charge jsonb),
        lateral (select statement_timestamp() + place * interval '1 microsecond') as t (arrived)
    on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing
    returning id, arrived_at, deadline_at, eta
"""  # noqa: S608  # constants


def insert(connection: Connection, requests: Sequence[NewRequest]) -> list[RequestView]:
    """Stores all of these requests as queued, or none of them; returns them as stored."""
    return [stored for stored in _insert(connection, [_values(new) for new in requests]) if stored is not None]


def submit(
    connection: Connection, new: NewRequest, *, idempotency_key: str | None = None, digest: bytes | None = None
) -> RequestView:
    """Stores a request as queued and returns it; a second call with its idempotency key returns the first request.

    Stores a new one if the first failed by the service's fault. Raises IdempotencyKeyReused if the digests differ, and
    QuoteUsed, after which the caller must roll back, if the quote of its promise was accepted before.
    """
    sha256 = None if digest is None else digest.hex()
    (stored,) = _insert(connection, [_values(new, idempotency_key=idempotency_key, idempotency_sha256=sha256)])
    if stored is not None:
        return stored if new.promise is None else replace(stored, promise=_sold(connection, stored, new.promise))
    with Session(connection, expire_on_commit=False) as session:
        earlier = _of_key(session, new.tenant, idempotency_key, texts=True)
    if earlier is None:  # the earlier request was deleted between the two statements, so the key is free again
        return submit(connection, new, idempotency_key=idempotency_key, digest=digest)
    if earlier.request.idempotency_sha256 != digest:
        raise IdempotencyKeyReused(earlier.request.id)
    if failed_by_service(earlier.request):
        run(connection, FREE_KEY, {"id": earlier.request.id})
        return submit(connection, new, idempotency_key=idempotency_key, digest=digest)
    return earlier


def is_repeat(session: Session, tenant: str, idempotency_key: str) -> bool:
    """Returns whether a call with this key gets an earlier request, so that it makes none."""
    earlier = _of_key(session, tenant, idempotency_key)
    return earlier is not None and not failed_by_service(earlier.request)


def _of_key(session: Session, tenant: str, key: str | None, *, texts: bool = False) -> RequestView | None:
    same_key = (StoredRequest.tenant == tenant, StoredRequest.idempotency_key == key)
    return next(read_views(session, select_views(texts=texts).where(*same_key)), None)


def _sold(connection: Connection, view: RequestView, promise: Promise) -> StoredPromise:
    one = view.request
    return sell(connection, promise, one.id, one.tenant, one.tier, one.arrived_at)


def sell(
    connection: Connection, promise: Promise, request_id: str, tenant: str, tier: str, sold_at: datetime
) -> StoredPromise:
    """Stores the promise of a request or bulk job that was just inserted; raises QuoteUsed."""
    due_at = None if promise.within_s is None else sold_at + timedelta(seconds=promise.within_s)
    values = {
        "request_id": request_id,
        "quote": promise.quote,
        "tenant": tenant,
        "tier": tier,
        "probability": promise.probability,
        "price": promise.price,
        "tokens": promise.tokens,
        "sold_at": sold_at,
        "promised_by": due_at,
        "look_at": None if due_at is None else due_at + WRITTEN_WITHIN,
    }
    if not run(connection, SELL, values):
        raise QuoteUsed
    return StoredPromise(**values, missed=False, warned=False)


def failed_by_service(request: StoredRequest) -> bool:
    """Returns whether a request failed for a reason that is not its own."""
    return request.status is RequestStatus.failed and (request.error or {}).get("code") in TRIED_AGAIN


def _values(new: NewRequest, **others: str | None) -> dict[str, Any]:
    values = {name: getattr(new, name) for name in FIELDS}
    return values | others | {"random": random_part(), "twin_sha256": _twin_sha256(new)}


def _twin_sha256(new: NewRequest) -> str | None:
    """Returns the digest that a request shares with those of the same answer, the same turn and the same job."""
    if new.computation is None:
        return None
    turn = f"{new.tier} {new.priority} {new.job_id or ''}"
    return sha256(new.computation + turn.encode()).hexdigest()


def _insert(connection: Connection, values: Sequence[Mapping[str, Any]]) -> list[RequestView | None]:
    """Returns a view for each of these values, in their order; None where the idempotency key was used before."""
    numbered = [{**one, "place": place} for place, one in enumerate(values)]
    rows = run(connection, INSERT, {"new": to_json(numbered).decode()})
    inserted = {row.id[-RANDOM_DIGITS:]: row for row in rows}
    return [_view(one, inserted[one["random"]]) if one["random"] in inserted else None for one in values]


def _view(values: Mapping[str, Any], row: Any) -> RequestView:
    """Returns the view of an inserted row; makes its object as a query does, because the constructor takes 0.1 ms."""
    stored: StoredRequest = manager_of_class(StoredRequest).new_instance()
    stored.__dict__.update(
        {name: values[name] for name in GIVEN}, **row._asdict(), status=RequestStatus.queued, attempts=0
    )
    stored.__dict__.update(idempotency_key=values.get("idempotency_key"), needs=list(values["needs"]))
    return RequestView(stored, None, 0, row.arrived_at)
