"""What one tenant may take of the service, and how it is told: 429 with the limit, the remedy and when to come back."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from models.connections.session import make_sessions
from models.planning.queue_snapshot import QueueSnapshot, WaitingQueue, write_queue_snapshot
from models.tenants import tenant_limits
from settings import Settings
from tests.integration.api_service import Api, ApiAnswer
from webapp.app import KEYS_TTL_S, create_app
from webapp.limits.backlog_limits import BacklogLimit

LIMITS = {"tenant_queued_requests": 2, "tenant_queued_tokens": 12, "waiting_calls": 1}


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


def set_limits(api: Api, **columns: int) -> None:
    """Sets limits of the tenant `acme` as `magnus tenant set` does, and waits until they hold."""
    with make_sessions(api.engine).begin() as session:
        tenant_limits.change_tenant(session, "acme", columns)
    Event().wait(KEYS_TTL_S)


def test_limits_of_a_tenants_own_hold_soon_after_they_are_set(limited: Api) -> None:
    set_limits(limited, queued_requests=1)
    assert [post(limited).status_code for _ in range(2)] == [200, 429]
    set_limits(limited, queued_requests=4, queued_tokens=1000)
    assert [post(limited).status_code for _ in range(4)] == [200, 200, 200, 429]


def test_a_tenants_rate_is_of_all_its_keys_together_and_the_headers_say_what_is_left(limited: Api) -> None:
    set_limits(limited, requests_per_minute=3)
    left = []
    for api in (limited, limited.with_key(), limited):
        answer = api.call("GET", "/v1/models")
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        left.append(answer.headers["x-ratelimit-remaining-requests"])
    assert left == ["2", "1", "0"]
    refused = limited.call("GET", "/v1/models")
    assert (refused.status_code, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert re.fullmatch(r"([1-5]?\d(\.\d+)?s|1m0s|\d+ms)", refused.headers["x-ratelimit-reset-requests"])
    assert limited.other_tenant().call("GET", "/v1/models").status_code == 200


def test_the_headers_of_a_submission_say_how_many_tokens_may_still_wait(limited: Api) -> None:
    answer = post(limited)
    assert answer.headers["x-ratelimit-limit-tokens"] == "12"
    used = answer.json["magnus"]["prompt_tokens"]
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 12 - used
    assert "x-ratelimit-limit-tokens" not in limited.call("GET", "/v1/models").headers


def test_whoever_is_full_is_told_when_the_planner_expects_room(limited: Api) -> None:
    with limited.engine.begin() as connection:
        write_queue_snapshot(
            connection, QueueSnapshot(at=datetime.now(UTC), queue=WaitingQueue(requests=2, backlog_s=90.0))
        )
    answers = [post(limited) for _ in range(3)]
    assert answers[-1].status_code == 429
    assert answers[-1].headers["Retry-After"] == "45"  # one of the two must end, and both take 90 s


def test_a_window_of_the_statistics_is_at_most_a_day_wide(limited: Api) -> None:
    answer = limited.call("GET", "/v1/magnus/stats?since=0")
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "since")
    assert limited.call("GET", "/v1/magnus/stats?since=1000&until=87400").status_code == 200


def test_an_accepted_request_is_answered_though_the_database_goes_away_before_its_headers_are_written(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(limit: BacklogLimit, tenant: str) -> None:
        raise OperationalError("select", {}, Exception("away"))

    monkeypatch.setattr(BacklogLimit, "standing", away)
    answer = post(api)
    assert answer.status_code == 200
    assert "x-ratelimit-limit-requests" in answer.headers
    assert "x-ratelimit-limit-tokens" not in answer.headers
