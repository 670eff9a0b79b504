"""Buys promises for some of the requests of a run by their quotes, and counts the kept ones."""

import itertools
from typing import Any

from sqlalchemy.orm import Session

from benchmarks.harness import Json
from cli.api_client import Client, ServiceError
from models.connections.sql import text

KEPT = text("""
    select probability, count(*) as sold,
        avg((status in ('completed', 'incomplete') and finished_at <= promised_by)::int)::float8 as kept_share,
        percentile_cont(0.5) within group (order by extract(epoch from promised_by - sold_at))::float8 as promised_s
    from promises join requests on requests.id = request_id
    where probability is not null and sold_at > to_timestamp(:since) group by 1 order by 1
""")


class Buyer:
    """Asks for a quote before every `nth` request, and accepts its promises in turn; 0 stands for no request."""

    def __init__(self, client: Client, nth: int) -> None:
        self._client, self._nth = client, nth
        self._numbers = itertools.count(1)  # of several threads; `next` is one step of the interpreter

    def create(self, body: Json) -> Json:
        """Submit a request, with a promise if it is its turn and the promise still holds."""
        number = next(self._numbers)
        if self._nth and number % self._nth == 0:
            quote = self._client.call("POST", "magnus", "quotes", json=body)
            offers: list[Any] = [
                one for one in quote["data"] if one["service_tier"] == "default" and one["within_s"] is not None
            ]
            if offers:
                chosen = offers[number // self._nth % len(offers)]["id"]
                try:
                    return self._client.create(body | {"magnus": {"quote": chosen}})
                except ServiceError as error:
                    if error.code != "quote_outdated":
                        raise
        return self._client.create(body)


def kept_promises(session: Session, since: float) -> list[Json]:
    """Return a row for each probability of which promises were sold since an instant: how many, and the kept share."""
    rows = session.execute(KEPT, {"since": since})
    return [{"moment": f"promise of {row.probability:.0%}", **row._mapping} for row in rows]
