"""Requests with megabytes beside their prompts: bounded one by one, and harmless in lists."""

import json
from typing import Any

import pytest
from sqlalchemy.exc import InvalidRequestError

from models import client_requests
from models.connections.session import make_sessions
from settings import Settings
from tests.integration.api_service import Api
from tests.integration.conftest import running_api


def fat_tools(size_bytes: int) -> dict[str, Any]:
    function = {"type": "function", "name": "f", "description": "x" * size_bytes, "parameters": {"type": "object"}}
    return {"tools": [function], "tool_choice": "none"}


def test_a_request_that_would_fill_the_database_is_refused_though_its_prompt_is_short(
    web_settings: Settings, api: Api
) -> None:
    for larger in running_api(web_settings.model_copy(update={"max_body_bytes": 8 * 2**20})):
        body = {"model": "words", "input": "eins", "background": True} | fat_tools(2 * 2**20)
        answer = Api(larger.client, api.engine, api.key).call("POST", "/v1/responses", json=body)
        assert (answer.status_code, answer.json["error"]["param"]) == (400, "tools")
        assert answer.json["error"]["code"] == "request_too_large"
    assert api.sql("select count(*) from requests") == [(0,)]


def test_a_list_of_large_requests_ends_a_page_early_and_leaves_none_out(api: Api) -> None:
    ids = [api.submit(**fat_tools(90_000))["id"] for _ in range(60)]
    listed: list[str] = []
    pages = 0
    more = True
    while more:
        after = f"&after={listed[-1]}" if listed else ""
        page = api.call("GET", f"/v1/responses?limit=100&order=asc{after}").json
        assert len(json.dumps(page)) < 3 * 2**20
        listed += [one["id"] for one in page["data"]]
        more, pages = page["has_more"], pages + 1
    assert listed == ids
    assert pages == 3


def test_a_dashboards_list_reads_no_text(api: Api) -> None:
    api.submit(**fat_tools(90_000))
    with make_sessions(api.engine)() as session:
        page = client_requests.page(session, None)
        assert page is not None
        with pytest.raises(InvalidRequestError, match="raiseload"):
            _ = page.entries[0].request.body
