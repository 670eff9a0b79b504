"""What one tenant may take of the service, and how it is told: 429 with the limit, the remedy and when to come back."""

from collections.abc import Iterator
from typing import Any

import pytest

from settings import Settings
from tests.integration.api_service import Api, ApiAnswer
from webapp.app import create_app

LIMITS = {"tenant_queued_requests": 2, "tenant_queued_tokens": 12, "waiting_calls": 1, "tenant_waiting_calls": 1}


@pytest.fixture
def limited(web_settings: Settings, api: Api) -> Iterator[Api]:
    """The API with limits that two requests reach."""
    app = create_app(web_settings.model_copy(update=LIMITS))
    yield Api(app.test_client(), api.engine, api.key)
    app.extensions["magnus"].close()


def post(api: Api, **fields: Any) -> ApiAnswer:
    body = {"model": "words", "input": "eins zwei", "instructions": "Translate.", "background": True} | fields
    return api.call("POST", "/v1/responses", json=body)


def test_a_tenant_has_so_many_requests_in_the_queue(limited: Api) -> None:
    assert [post(limited).status_code for _ in range(3)] == [200, 200, 429]
    answer = post(limited)
    assert (answer.json["error"]["type"], answer.json["error"]["code"]) == ("rate_limit_error", "backlog_full")
    assert "MAGNUS_TENANT_QUEUED_REQUESTS" in answer.json["error"]["message"]
    assert int(answer.headers["Retry-After"]) > 0
    assert post(limited.other_tenant()).status_code == 200
    assert limited.sql("select count(*) from requests where tenant = 'acme'")[0][0] == 2


def test_the_prompts_of_a_tenants_queue_have_so_many_tokens(limited: Api) -> None:
    answer = post(limited, input="eins " * 20)
    assert answer.status_code == 429
    assert "MAGNUS_TENANT_QUEUED_TOKENS" in answer.json["error"]["message"]


def test_a_window_of_the_statistics_is_at_most_a_day_wide(limited: Api) -> None:
    answer = limited.call("GET", "/v1/magnus/stats?since=0")
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "since")
    assert limited.call("GET", "/v1/magnus/stats?since=1000&until=87400").status_code == 200


def test_a_clients_own_words_are_no_labels_of_metrics(limited: Api) -> None:
    for method in ("SECRET", "GETGET", "get"):
        limited.call(method, "/v1/models")
    limited.call("GET", "/v1/secret")
    metrics = limited.client.get("/metrics").get_data(as_text=True)
    assert "secret" not in metrics.lower()
    assert 'method="other"' in metrics
