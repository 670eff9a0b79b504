"""What a key may do: by its scopes, until it expires. Every route needs one; a new route cannot be forgotten."""

from datetime import UTC, datetime, timedelta

import pytest

from models.tenants.api_keys import Scope
from tests.integration.api_service import Api
from webapp.context.auth import ROUTE_SCOPES, scope_of

ID = f"resp_{1:032x}"


def test_the_table_of_scopes_has_every_route_of_the_document_and_no_other(api: Api) -> None:
    assert set(api.routes()) == set(ROUTE_SCOPES)


def test_a_route_that_is_in_no_table_needs_the_highest_scope() -> None:
    assert scope_of("POST", "/v1/forgotten/<id>") is Scope.operate
    assert scope_of("HEAD", "/v1/models") is Scope.read
    assert scope_of("GET", "/v1/models/<path:name>") is Scope.read


def test_without_its_scope_no_route_does_anything_and_each_names_the_scope(api: Api) -> None:
    for method, path in api.routes():
        needed = ROUTE_SCOPES[method, path]
        without = api.with_key(scopes=frozenset(Scope) - {needed})
        answer = without.call(method, path.replace("{id}", ID).replace("{name}", "words"), json={})
        assert answer.status_code == 403, (method, path)
        error = answer.json["error"]
        assert error["code"] == "missing_scope"
        assert f"Missing scopes: {needed}." in error["message"]
    assert api.sql("select count(*) from requests")[0][0] == 0


def test_with_its_scope_alone_each_route_is_open(api: Api) -> None:
    for method, path in api.routes():
        alone = api.with_key(scopes={ROUTE_SCOPES[method, path]})
        answer = alone.call(method, path.replace("{id}", ID).replace("{name}", "words"), json={})
        assert answer.status_code in (200, 400, 404), (method, path)


def test_a_key_made_before_there_were_scopes_submits_and_reads(api: Api) -> None:
    api.sql("update api_keys set scopes = default, expires_at = default")
    path = f"/v1/responses/{api.submit()['id']}"
    assert api.call("GET", path).status_code == 200
    assert api.call("POST", f"{path}/cancel").status_code == 200
    assert api.call("DELETE", path).status_code == 200
    assert api.call("GET", "/v1/magnus/stats").status_code == 200


@pytest.mark.parametrize("expires", [timedelta(seconds=-1), datetime(2020, 1, 1, tzinfo=UTC)])
def test_an_expired_key_is_refused_as_clients_expect_it(api: Api, expires: datetime | timedelta) -> None:
    expired = api.with_key(expires=expires)
    answer = expired.call("GET", "/v1/models")
    assert answer.status_code == 401
    error = answer.json["error"]
    assert error["message"].startswith("Incorrect API key provided: magnus-")
    assert expired.key not in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_key_that_expires_later_works(api: Api) -> None:
    assert api.with_key(expires=timedelta(hours=1)).call("GET", "/v1/models").status_code == 200


def test_of_a_key_of_another_service_next_to_nothing_is_repeated(api: Api) -> None:
    answer = Api(api.client, api.engine, "sk-proj-secret").call("GET", "/v1/models")
    assert answer.json["error"]["message"].startswith("Incorrect API key provided: sk-****.")


def test_an_address_that_does_not_exist_is_not_found_and_no_missing_scope(api: Api) -> None:
    assert api.call("GET", "/v1/nothing").status_code == 404
    assert api.call("PATCH", "/v1/responses").status_code == 405
