"""Webhook endpoints by the API, and which ends of responses write events for them."""

import pytest

from models import client_requests
from models.connections.session import make_sessions
from models.leasing import batch_results
from models.leasing.batch_results import Answer
from models.leasing.leases import Lease
from models.tables import RequestStatus
from models.upkeep import reconciler
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage

URL = "https://example.com/hook"
WEBHOOKS = "/v1/magnus/webhooks"


@pytest.fixture
def endpoint(api: Api) -> str:
    return str(api.call("POST", WEBHOOKS, json={"url": URL}).json["id"])


def events(api: Api) -> list[tuple[str, str]]:
    """Type and object of each event that waits for its delivery."""
    return [tuple(row) for row in api.sql("select type, object_id from webhook_deliveries order by id")]


def test_an_endpoint_shows_its_secret_once(api: Api) -> None:
    made = api.call("POST", WEBHOOKS, json={"url": URL, "events": ["response.failed"]}).json
    assert made["secret"].startswith("whsec_")
    (listed,) = api.call("GET", WEBHOOKS).json["data"]
    assert listed == {**made, "secret": None}
    assert (listed["url"], listed["events"], listed["failures"]) == (URL, ["response.failed"], 0)


def test_a_rotated_secret_is_another_one_and_the_old_one_goes_on_for_a_while(api: Api, endpoint: str) -> None:
    ((secret,),) = api.sql("select secret from webhook_endpoints")
    rotated = api.call("POST", f"{WEBHOOKS}/{endpoint}/rotate?overlap_s=100").json
    ((new, old, left_s),) = api.sql(
        """select secret, old_secret, extract(epoch from old_secret_until - clock_timestamp())::float8
        from webhook_endpoints"""
    )
    assert (rotated["secret"], old) == (new, secret)
    assert new != secret
    assert 90 < left_s <= 100


def test_a_deleted_endpoint_is_gone_and_gets_nothing_more(api: Api, endpoint: str) -> None:
    assert api.call("DELETE", f"{WEBHOOKS}/{endpoint}").json == {
        "id": endpoint,
        "object": "magnus.webhook",
        "deleted": True,
    }
    assert api.call("DELETE", f"{WEBHOOKS}/{endpoint}").status_code == 404
    api.call("POST", f"/v1/responses/{api.submit()['id']}/cancel")
    assert events(api) == []


@pytest.mark.parametrize("url", ["http://example.com/", "https://10.0.0.1/", "nonsense", "https://u:p@example.com/"])
def test_an_address_to_which_nothing_is_sent_is_refused(api: Api, url: str) -> None:
    answer = api.call("POST", WEBHOOKS, json={"url": url})
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "url")


def test_every_way_in_which_a_background_response_ends_is_one_event(api: Api, endpoint: str) -> None:
    stage = Stage(api.engine)
    ended = {one: stage.request(one, status="in_progress", batch_id=1) for one in ("resp_a", "resp_b", "resp_c")}
    answers = [
        Answer(Lease(1, 1), ended["resp_a"], RequestStatus.completed, "text", 3, "eos", 0.0),
        Answer(Lease(1, 1), ended["resp_b"], RequestStatus.incomplete, "text", 3, "limit", 0.0),
        Answer(Lease(1, 1), ended["resp_c"], RequestStatus.failed, None, 0, None, 0.0, {"code": "x", "message": "y"}),
    ]
    stage.request("resp_d")
    stage.request("resp_e")
    stage.sql("update requests set deadline_at = now() - interval '1 s' where id = 'resp_e'")
    with api.engine.begin() as connection:
        batch_results.write_answers(connection, answers)
        reconciler.expire_deadlines(connection)
    with make_sessions(api.engine)() as session:
        client_requests.cancel(session, "acme", ["resp_d"])
    assert sorted(events(api), key=lambda event: event[1]) == [
        ("response.completed", "resp_a"),
        ("response.incomplete", "resp_b"),
        ("response.failed", "resp_c"),
        ("response.cancelled", "resp_d"),
        ("response.failed", "resp_e"),
    ]


def test_what_is_undone_tells_nobody(api: Api, endpoint: str) -> None:
    Stage(api.engine).request("resp_a")
    with api.engine.connect() as connection:
        connection.exec_driver_sql("update requests set status = 'cancelled', finished_at = now()")
        connection.rollback()
    assert events(api) == []


def test_a_call_that_waits_and_another_tenants_response_are_no_events(api: Api, endpoint: str) -> None:
    stage = Stage(api.engine)
    stage.request("resp_waiting", body={"background": False})
    stage.request("resp_odd", body={"background": "perhaps"})
    stage.request("resp_foreign", tenant="globex")
    stage.sql("update requests set status = 'cancelled', finished_at = now()")
    assert events(api) == []


def test_an_endpoint_gets_the_events_that_it_asked_for_and_each_endpoint_its_own(api: Api) -> None:
    failures = api.call("POST", WEBHOOKS, json={"url": URL, "events": ["response.failed"]}).json["id"]
    all_ = api.call("POST", WEBHOOKS, json={"url": URL}).json["id"]
    response = api.submit()["id"]
    api.call("POST", f"/v1/responses/{response}/cancel")
    assert api.call("GET", f"{WEBHOOKS}/{failures}/deliveries").json["data"] == []
    (delivery,) = api.call("GET", f"{WEBHOOKS}/{all_}/deliveries").json["data"]
    assert (delivery["type"], delivery["data_id"]) == ("response.cancelled", response)
    assert delivery["event"] == response.replace("resp_", "evt_")
    assert (delivery["state"], delivery["attempts"]) == ("waiting", 0)


def test_deliveries_come_page_by_page_and_one_is_sent_again_under_its_id(api: Api, endpoint: str) -> None:
    for _ in range(5):
        api.call("POST", f"/v1/responses/{api.submit()['id']}/cancel")
    first = api.call("GET", f"{WEBHOOKS}/{endpoint}/deliveries?limit=3").json
    last = api.call("GET", f"{WEBHOOKS}/{endpoint}/deliveries?limit=3&after={first['data'][-1]['id']}").json
    assert (first["has_more"], last["has_more"]) == (True, False)
    ids = [one["id"] for one in (*first["data"], *last["data"])]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 5
    api.sql("update webhook_deliveries set next_attempt_at = null, delivered_at = clock_timestamp()")
    again = api.call("POST", f"{WEBHOOKS}/{endpoint}/deliveries/{ids[0]}/redeliver").json
    assert (again["id"], again["state"], again["event"]) == (ids[0], "waiting", first["data"][0]["event"])
    for unknown in ("0", "99999999999999999999", "x", str(max(ids) + 1)):
        assert api.call("POST", f"{WEBHOOKS}/{endpoint}/deliveries/{unknown}/redeliver").status_code == 404
