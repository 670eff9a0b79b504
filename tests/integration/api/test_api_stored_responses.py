"""Stored responses over the API: cancelled, deleted, listed, and nobody else's."""

import pytest

from tests.integration.api_service import Api, finish


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_goes_on_behind_a_response_that_was_deleted_meanwhile(api: Api, order: str) -> None:
    ids = [api.submit(f"text {number}")["id"] for number in range(4)]
    seen, path = [], f"/v1/responses?limit=1&order={order}"
    for _ in ids:
        [one] = api.call("GET", path).json["data"]
        assert api.call("DELETE", f"/v1/responses/{one['id']}").status_code == 200
        seen.append(one["id"])
        path = f"/v1/responses?limit=1&order={order}&after={one['id']}"
    assert seen == (ids if order == "asc" else ids[::-1])
    assert api.call("GET", path).json["data"] == []


def test_cancelling_a_waiting_request_ends_it_at_once_and_twice_is_the_same(api: Api) -> None:
    made = api.submit()["id"]
    first = api.call("POST", f"/v1/responses/{made}/cancel").json
    second = api.call("POST", f"/v1/responses/{made}/cancel").json
    assert first["status"] == second["status"] == "cancelled"
    assert first["completed_at"] == second["completed_at"]


def test_cancelling_a_completed_response_changes_nothing(api: Api) -> None:
    made = api.submit()["id"]
    finish(api, made)
    assert api.call("POST", f"/v1/responses/{made}/cancel").json["status"] == "completed"


def test_a_deleted_response_is_gone(api: Api) -> None:
    made = api.submit()["id"]
    assert api.call("DELETE", f"/v1/responses/{made}").json == {"id": made, "object": "response", "deleted": True}
    assert api.call("GET", f"/v1/responses/{made}").status_code == 404
    assert api.call("DELETE", f"/v1/responses/{made}").status_code == 404


def test_lists_page_by_cursor_without_gap_or_repeat(api: Api) -> None:
    ids = [api.submit()["id"] for _ in range(5)]
    seen: list[str] = []
    path = "/v1/responses?limit=2"
    while True:
        page = api.call("GET", path).json
        seen += [entry["id"] for entry in page["data"]]
        if not page["has_more"]:
            break
        path = f"/v1/responses?limit=2&after={page['last_id']}"
    assert seen == ids[::-1]
    oldest_first = api.call("GET", f"/v1/responses?order=asc&after={ids[1]}").json
    assert [entry["id"] for entry in oldest_first["data"]] == ids[2:]


def test_lists_filter_by_status_and_application(api: Api) -> None:
    first = api.submit(metadata={"application": "a"})["id"]
    api.submit(metadata={"application": "b"})
    finish(api, first)
    completed = api.call("GET", "/v1/responses?status=completed").json
    assert [entry["id"] for entry in completed["data"]] == [first]
    assert [e["magnus"]["application"] for e in api.call("GET", "/v1/responses?application=b").json["data"]] == ["b"]
    assert api.call("GET", "/v1/responses?status=lost").json["error"]["param"] == "status"


def test_a_row_that_another_program_wrote_differently_says_so_and_takes_no_other_down(api: Api) -> None:
    good, bad = api.submit()["id"], api.submit()["id"]
    for malformed in ('{"sampling": "hot"}', "[]", '{"sampling": {}, "metadata": 5}', "null"):
        api.sql("update requests set body = cast(:body as jsonb) where id = :id", body=malformed, id=bad)
        retrieved = api.call("GET", f"/v1/responses/{bad}")
        assert (retrieved.status_code, retrieved.json["error"]["code"]) == (200, "unreadable_request")
        listed = {one["id"]: one["error"] for one in api.call("GET", "/v1/responses").json["data"]}
        assert listed == {good: None, bad: retrieved.json["error"]}
