"""The promise book: which promises were kept, what broke the others, and who is told."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from models.connections.session import make_sessions
from models.operations import promise_book
from models.planning.queue_snapshot import AnswerForecast, ModelForecast, ModelForecasts, QueueSnapshot
from models.planning.queue_snapshot import write_queue_snapshot as write
from models.tenants.api_keys import Scope
from models.webhooks import webhook_endpoints
from settings import Settings
from tests.integration.api_service import MODEL, Api
from tests.integration.conftest import running_api

BOOK = "/v1/magnus/promises"
CAUSES = ("longer_answer", "lost_worker", "failed", "later_arrivals", "unexplained")


def sell(api: Api, number: int = 1, **request: str) -> list[str]:
    """Stores requests that came 60 s ago and were promised 20 s later; `request` has columns as SQL."""
    ids = [api.submit()["id"] for _ in range(number)]
    columns = {"arrived_at": "arrived_at - interval '60 s'"} | request
    changed = ", ".join(f"{name} = {value}" for name, value in columns.items())
    api.sql(f"update requests set {changed} where id = any(:ids)", ids=ids)
    api.sql(
        """insert into promises (request_id, quote, tenant, tier, probability, tokens, sold_at, promised_by, look_at)
        select id, id, tenant, 'default', 0.9, 10, arrived_at, arrived_at + interval '20 s',
            arrived_at + interval '30 s' from requests where id = any(:ids)""",
        ids=ids,
    )
    return ids


def ended(after_s: float, status: str = "completed", tokens: int = 10, started_s: float = 1.0) -> dict[str, str]:
    """The columns of a request that ended so long after it came."""
    came = "arrived_at - interval '60 s' + interval '1 s' *"
    return {
        "status": f"'{status}'",
        "started_at": f"{came} {started_s}",
        "finished_at": f"{came} {after_s}",
        "output_tokens": str(tokens),
    }


def settle(api: Api, most: int = 100) -> int:
    with api.engine.begin() as connection:
        return promise_book.settle(connection, most)


def day(api: Api, tier: str | None = None) -> dict[str, Any]:
    api.client.application.extensions["magnus"].promise_book.forget()
    (found,) = [one for one in api.call("GET", BOOK).json["day"] if one["service_tier"] == tier]
    return dict(found)


def withheld(api: Api) -> dict[str, frozenset[float]]:
    """The levels at which the service promises nothing, by model."""
    with make_sessions(api.engine)() as session:
        return promise_book.withheld_levels(session)


def broken(told: dict[str, Any]) -> dict[str, int]:
    """What broke the missed promises, without what broke none."""
    return {name: told[name] for name in CAUSES if told[name]}


def test_promises_are_counted_once_as_kept_or_by_what_broke_them(api: Api) -> None:
    sell(api, 3, **ended(19.9))
    sell(api, 2, **ended(40.0, tokens=100))  # 39 s for 100 tokens: 10 tokens would have come in time
    sell(api, 1, **ended(40.0, started_s=38.0))  # it waited
    sell(api, 1, **ended(40.0, started_s=38.0, tokens=11))  # a little longer, but that was not why
    sell(api, 1, **ended(5.0, status="failed"))
    sell(api, 1, **ended(5.0, status="cancelled"))  # its client did not want it any more
    refused = ended(5.0, status="failed") | {"error": """'{"code": "refused_by_engine"}'"""}  # no engine can answer it
    (one,) = sell(api, 1, **refused)
    assert api.call("GET", f"/v1/responses/{one}").json["magnus"]["promise"]["kept"] is None
    (deleted,) = sell(api, 1, **ended(5.0))
    api.sql("delete from requests where id = :id", id=deleted)
    assert settle(api) == 11
    assert settle(api) == 0
    told = day(api)
    assert (told["sold"], told["kept"], told["kept_share"]) == (8, 3, 0.375)
    assert broken(told) == {"longer_answer": 2, "later_arrivals": 2, "failed": 1}
    assert day(api, tier="default") == told | {"service_tier": "default"}


def test_a_worker_that_is_lost_meanwhile_breaks_promises(api: Api) -> None:
    api.sql(
        """insert into batches (worker, model, policy, status, size, length, predicted_generation_length, estimated_s,
            finished_at) values ('w', :model, 'fusion', 'lost', 1, 1, 1, 1, clock_timestamp() - interval '50 s')""",
        model=MODEL,
    )
    sell(api, 1, **ended(40.0, tokens=100))
    sell(api, 1, **ended(10.0))
    settle(api)
    assert broken(day(api)) == {"lost_worker": 1}


def test_a_promise_is_missed_when_its_time_is_over_and_explained_when_its_request_ends(api: Api) -> None:
    (late,) = sell(api)
    settle(api)
    assert (day(api)["sold"], day(api)["kept"]) == (1, 0)
    assert broken(day(api)) == {"unexplained": 1}
    assert settle(api) == 0  # it is looked at again later
    api.sql("update promises set look_at = clock_timestamp()")
    api.sql(
        """update requests set status = 'completed', finished_at = clock_timestamp(), output_tokens = 1,
        started_at = clock_timestamp() where id = :id""",
        id=late,
    )
    settle(api)
    assert day(api)["sold"] == 1
    assert broken(day(api)) == {"later_arrivals": 1}


def test_a_promise_of_many_tokens_of_which_few_came_is_settled(api: Api) -> None:
    sell(api, 1, **ended(40.0, tokens=1))
    api.sql("update promises set tokens = 1e13")  # as of a large batch that is cancelled late
    settle(api)
    assert broken(day(api)) == {"later_arrivals": 1}


def test_many_promises_are_settled_in_parts(api: Api) -> None:
    sell(api, 5, **ended(1.0))
    assert [settle(api, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert day(api)["kept"] == 5


def test_a_level_is_short_if_chance_does_not_explain_what_was_missed(api: Api) -> None:
    sell(api, 17, **ended(1.0))
    sell(api, 3, **ended(40.0))
    settle(api)
    assert (day(api)["error"], day(api)["short"]) == (pytest.approx(0.0671, abs=1e-4), False)  # 0.85 of 0.9
    sell(api, 5, **ended(40.0))
    settle(api)
    assert (day(api)["kept_share"], day(api)["short"]) == (0.68, True)
    metrics = api.client.get("/metrics").get_data(as_text=True)
    for line in ("due", "kept", "short"):
        assert f'magnus_promises_{line}{{model="{MODEL}",probability="0.9"}}' in metrics
    assert f'magnus_promises_short{{model="{MODEL}",probability="0.9"}} 1.0' in metrics


def test_a_level_that_was_short_lately_is_not_promised(api: Api) -> None:
    sell(api, 19, **ended(40.0))
    settle(api)
    assert withheld(api) == {}
    sell(api, 1, **ended(40.0))
    settle(api)
    assert withheld(api) == {MODEL: {0.9}}
    api.sql("update promise_hours set hour = hour - interval '2 hours'")
    assert withheld(api) == {}


def test_the_worst_hour_is_the_one_with_the_most_promises_missed_beyond_those_expected(api: Api) -> None:
    sell(api, 2, **ended(40.0))
    settle(api)
    api.sql(
        """insert into promise_hours select date_trunc('hour', now()) - interval '30 hours', 'acme', 'words',
        'default', 0.5, 100, 50, 0, 0, 0, 50"""
    )
    told = api.call("GET", BOOK).json
    assert told["worst_hour"]["sold"] == 2  # of the others as many were kept as promised
    assert [one["probability"] for one in told["week"]] == [0.5, 0.5, 0.9, 0.9]
    assert [one["probability"] for one in told["day"]] == [0.9, 0.9]


def test_a_tenant_reads_its_own_promises_and_an_operator_those_of_all(api: Api) -> None:
    sell(api, 2, **ended(1.0))
    sell(api.other_tenant(), 1, **ended(1.0))
    settle(api)
    assert api.call("GET", BOOK).json["day"][0]["sold"] == 2
    everything = api.with_key(scopes={Scope.operate, Scope.read}).call("GET", BOOK)
    assert everything.json["day"][0]["sold"] == 3
    assert api.client.get(BOOK).status_code == 401
    assert api.client.get("/promises").status_code != 200


@pytest.fixture
def public(web_settings: Settings) -> Iterator[Api]:
    """A service whose promise book everybody may read."""
    yield from running_api(web_settings.model_copy(update={"public_promises": True}))


def test_a_public_book_needs_no_key_and_names_no_tenant(public: Api) -> None:
    sell(public, 2, **ended(1.0))
    sell(public, 1, **ended(40.0))
    settle(public)
    told = public.with_key(scopes={Scope.operate, Scope.read}).call("GET", BOOK)
    open_to_all = public.client.get(BOOK)
    assert (open_to_all.status_code, open_to_all.json) == (200, told.json)
    assert told.json["day"][0]["sold"] == 3
    page = public.client.get("/promises")
    assert page.status_code == 200
    assert "acme" not in told.get_data(as_text=True) + page.get_data(as_text=True)
    assert public.client.get(BOOK, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert public.client.get("/usage").status_code != 200


def test_webhooks_are_told_once_that_an_answer_is_now_expected_too_late(api: Api) -> None:
    with make_sessions(api.engine)() as session:
        webhook_endpoints.create(session, "acme", "https://example.com", ["response.promise_at_risk"])
        webhook_endpoints.create(session, "acme", "https://example.com", ["response.completed"])
        webhook_endpoints.create(session, "globex", "https://example.com", ["response.promise_at_risk"])
    late, fine = sell(api, 2)
    api.sql("update promises set promised_by = now() + interval '20 s', look_at = now() + interval '30 s'")
    at = datetime.now(UTC)
    jobs = {late: AnswerForecast(2, 40.0, None, None), fine: AnswerForecast(1, 10.0, None, None)}
    forecasts = ModelForecasts(of_models={MODEL: ModelForecast(at=at.timestamp(), jobs=jobs)})
    with api.engine.begin() as connection:
        write(connection, QueueSnapshot(at=at, forecasts=forecasts))
    with make_sessions(api.engine)() as session:
        assert [promise_book.warn_of_risks(session) for _ in range(2)] == [1, 0]
    assert api.sql("select type, object_id from webhook_deliveries") == [("response.promise_at_risk", late)]
    api.client.application.extensions["magnus"].queue_snapshot.forget()
    assert api.call("GET", f"/v1/responses/{late}").json["magnus"]["promise"]["at_risk"] is True


def test_old_promises_and_old_hours_are_deleted(api: Api) -> None:
    sell(api, 3, **ended(1.0))
    settle(api)
    with api.engine.begin() as connection:
        assert promise_book.delete_old(connection, 7200.0, 2) == 0  # their hour began up to an hour before them
        assert [promise_book.delete_old(connection, 0.0, 2) for _ in range(2)] == [3, 1]
