"""One tenant's objects do not exist for another, on every route that the OpenAPI document lists.

A new route with an id must be given an object of a tenant here, and a new list its tenant's entries.
"""

import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.api_service import Api, ApiAnswer

# Calls whose answers tell of the whole service, and of nobody's objects.
SHARED = {
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/magnus/stats"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
}
# Calls that make an object of the caller's, with their bodies.
MAKING = {
    ("POST", "/v1/responses"): {"model": "words", "input": "eins", "background": True},
    ("POST", "/v1/chat/completions"): {"model": "words", "messages": [{"role": "user", "content": "eins"}]},
    ("POST", "/v1/completions"): {"model": "words", "prompt": "eins"},
    ("POST", "/v1/messages"): {
        "model": "words",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "eins"}],
    },
    ("POST", "/v1/magnus/webhooks"): {"url": "https://example.com/"},
}
# Calls that need a body to be understood.
CHANGING = {("POST", "/v1/batches/{id}"): {"completion_window": "7d"}}
# Calls that other models answer, looked at in `test_embeddings.py`.
POOLING = {("POST", "/v1/embeddings"), ("POST", "/v1/rerank"), ("POST", "/v1/score")}
# Quotes and what became of them: each tenant's in `test_api_quotes.py` and `test_promise_book.py`.
QUOTES = {("POST", "/v1/magnus/quotes"), ("GET", "/v1/magnus/promises")}
# Calls that make a file, or a batch of the caller's own file.
BULK_MAKING = {("POST", "/v1/files"), ("POST", "/v1/batches")}
LISTS = {
    ("GET", "/v1/responses"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/magnus/webhooks"),
    ("GET", "/v1/magnus/usage"),
    ("GET", "/v1/files"),
    ("GET", "/v1/batches"),
}


def make_batch(api: Api) -> tuple[str, str]:
    """The ids of a file and a batch of the caller's."""
    line = (
        b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "words", "input": "eins"}}\n'
    )
    file_id = api.call("POST", "/v1/files", data={"purpose": "batch", "file": (io.BytesIO(line), "lines.jsonl")}).json[
        "id"
    ]
    return file_id, start_batch(api, file_id).json["id"]


def start_batch(api: Api, file_id: str) -> ApiAnswer:
    """The answer to a batch of this file."""
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    return api.call("POST", "/v1/batches", json=body)


@pytest.fixture
def owned(api: Api) -> dict[str, dict[str, str]]:
    """The ids in paths, by the beginning of the path, of objects that `acme` has."""
    webhook = api.call("POST", "/v1/magnus/webhooks", json={"url": "https://example.com/"}).json["id"]
    api.call("POST", f"/v1/responses/{api.submit()['id']}/cancel")  # which the webhook is told
    delivery = api.call("GET", f"/v1/magnus/webhooks/{webhook}/deliveries").json["data"][0]["id"]
    api.sql("insert into usage_days values (current_date, 'acme', 'words', 1, 1, 1, 1)")
    file_id, batch_id = make_batch(api)
    chat = api.submit()["id"]
    answered = "status = 'completed', output_text = 'one', output_tokens = 1, finished_at = now()"
    api.sql(f"update requests set {answered} where id = '{chat}'")
    return {
        "/v1/responses/": {"id": api.submit()["id"]},
        "/v1/chat/completions/": {"id": chat},
        "/v1/messages/": {"id": chat},
        "/v1/magnus/webhooks/": {"id": webhook, "delivery": delivery},
        "/v1/files/": {"id": file_id},
        "/v1/batches/": {"id": batch_id},
    }


def objects_in(owned: dict[str, dict[str, str]], path: str) -> str:
    """The path with the ids of an object of acme's; fails for a path of which none is given."""
    ids = next((ids for start, ids in owned.items() if path.startswith(start)), {})
    for name, its_id in ids.items():
        path = path.replace(f"{{{name}}}", str(its_id))
    assert "{" not in path, f"{path}: give the isolation test an object"
    return path


def state(api: Api) -> list[Any]:
    """Everything that acme has."""
    tables = {
        "requests": "id, status, cancel_requested_at",
        "webhook_endpoints": "id, url, secret",
        "webhook_deliveries": "id, next_attempt_at",
        "files": "id",
        "bulk_jobs": "id, status",
    }
    return [api.sql(f"select {columns} from {table} order by id") for table, columns in tables.items()]


def test_another_tenants_objects_are_not_found_whatever_the_route(api: Api, owned: dict[str, dict[str, str]]) -> None:
    other = api.other_tenant()
    before = state(api)
    looked_for = [route for route in api.routes() if "{" in route[1] and route not in SHARED]
    for method, path in looked_for:
        answer = other.call(method, objects_in(owned, path), json=CHANGING.get((method, path)))
        assert answer.status_code == 404, (method, path)
    assert state(api) == before
    reachable = [
        api.call(method, objects_in(owned, path)).status_code for method, path in looked_for if method == "GET"
    ]
    assert set(reachable) == {200}  # the objects were there


def test_another_tenants_lists_are_empty(api: Api, owned: dict[str, dict[str, str]]) -> None:
    other = api.other_tenant()
    for method, path in LISTS:
        assert api.call(method, path).json["data"], path
        assert other.call(method, path).json["data"] == [], path
    for path in ("/v1/responses", "/v1/files", "/v1/batches"):
        assert other.call("GET", f"{path}?after={owned[f'{path}/']['id']}").status_code == 400, path


@pytest.mark.unanswered
def test_what_another_tenant_makes_is_its_own(api: Api, owned: dict[str, dict[str, str]]) -> None:
    other = api.other_tenant()
    seen: Callable[[], list[ApiAnswer]] = lambda: [api.call(*route).json["data"] for route in sorted(LISTS)]  # noqa: E731
    before = seen()
    for (method, path), body in MAKING.items():
        assert other.call(method, path, json=body).status_code in (200, 504), path  # nobody answers the waiting ones
    make_batch(other)
    assert start_batch(other, owned["/v1/files/"]["id"]).status_code == 404
    assert seen() == before


def test_one_idempotency_key_of_two_tenants_makes_two_responses(api: Api) -> None:
    body = MAKING["POST", "/v1/responses"]
    ids = {
        one.call("POST", "/v1/responses", json=body, headers={"Idempotency-Key": "k"}).json["id"]
        for one in (api, api.other_tenant(), api)
    }
    assert len(ids) == 2


def test_every_route_of_the_document_is_looked_at(api: Api) -> None:
    with_ids = {route for route in api.routes() if "{" in route[1]}
    assert set(api.routes()) == with_ids | SHARED | MAKING.keys() | POOLING | QUOTES | BULK_MAKING | LISTS
