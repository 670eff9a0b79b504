"""The tables of promises: one row for each accepted quote, and the sums of each hour, which the promise book shows."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from models.connections.sql import text
from models.tables import NOW, Base


@dataclass(frozen=True, slots=True)
class Promise:
    """What an accepted quote promises: an answer within `within_s` of its arrival, with this probability, at a price.

    `quote` is the quote's own number, `tokens` the answer's expected length. Without a forecast there is only a price.
    """

    quote: str
    probability: float | None
    within_s: float | None
    price: float | None
    tokens: float | None


class StoredPromise(Base):
    """The promise of one request or bulk job; its own row says whether it is kept."""

    __tablename__ = "promises"

    request_id: Mapped[str] = mapped_column(primary_key=True)
    quote: Mapped[str] = mapped_column(unique=True)  # each quote is accepted once
    tenant: Mapped[str]
    tier: Mapped[str]
    probability: Mapped[float | None]
    price: Mapped[float | None]  # in the operator's currency
    tokens: Mapped[float | None]  # the expected length of the answer
    sold_at: Mapped[datetime] = mapped_column(server_default=NOW)
    promised_by: Mapped[datetime | None]
    # when the book looks at it next: once it is due, and if it was missed, until its request ends; null: it is settled
    look_at: Mapped[datetime | None]
    missed: Mapped[bool] = mapped_column(server_default="false")  # counted as missed; why is known when it ends
    warned: Mapped[bool] = mapped_column(server_default="false")  # its client was told that it is at risk

    __table_args__ = (
        Index("promises_due", "look_at", postgresql_where=text("look_at is not null")),
        Index("promises_of_tenant", "tenant", "request_id"),
        Index("promises_by_time", "sold_at"),
    )


# A bulk job that is paused or changed keeps its price, but no time is promised any more. What is missed stays missed.
WITHDRAW = """
    update promises set promised_by = null, look_at = null
    where request_id = :id and promised_by > statement_timestamp()
"""


class PromiseHour(Base):
    """The promises that were due in an hour, and what broke those that were missed, once their requests have ended.

    `failed` ones have no answer, `longer_answer` ones would have been kept with an answer of the expected length, and
    during `lost_worker` ones a worker was lost. In the others other work came first: later arrivals, or a burst.
    """

    __tablename__ = "promise_hours"

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)  # whose workers serve them; empty if no line of a job was read
    tier: Mapped[str] = mapped_column(primary_key=True)
    probability: Mapped[float] = mapped_column(primary_key=True)
    sold: Mapped[int]
    kept: Mapped[int]
    lost_worker: Mapped[int]
    longer_answer: Mapped[int]
    failed: Mapped[int]
    later_arrivals: Mapped[int]
