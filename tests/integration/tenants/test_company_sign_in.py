"""Signing in with a company's account, at a real OpenID provider or by a proxy's header; keys go on to work."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
from flask.testing import FlaskClient
from pydantic import SecretStr
from werkzeug.test import TestResponse

from setting_formats import networks_in, roles_in
from tests.integration.api_service import Api
from tests.integration.conftest import running_api, small_service
from tests.integration.tenants.openid_stage import ROLES, at_provider, running_provider
from tests.integration.web_process import running_web
from webapp.dashboard.company_sign_in import CompanySignIn, TrustedProxy
from webapp.dashboard.openid_provider import OpenIdProvider
from webapp.dashboard.operator_sign_in import COOKIE
from webapp.dashboard.sign_in_pages import ATTEMPT_COOKIE, ATTEMPT_PATH

PASSWORD = "open sesame, please"
PUBLIC = "https://magnus.example.com"
HTML = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with running_provider() as address:
        yield address


@pytest.fixture(scope="module")
def company_api(module_database_url: str, word_model: Path, issuer: str) -> Iterator[Api]:
    settings = small_service(module_database_url, word_model)
    settings = settings.model_copy(update={"dashboard_password": SecretStr(PASSWORD)})
    yield from running_api(at_provider(settings, issuer, PUBLIC))


@pytest.fixture
def visitor(company_api: Api) -> FlaskClient:
    """A browser without cookies."""
    client: FlaskClient = company_api.client.application.test_client()
    return client


@contextmanager
def with_company(api: Api, company: CompanySignIn) -> Iterator[None]:
    """The app with other ways of signing in."""
    extensions = api.client.application.extensions
    before = extensions["magnus_dashboard"]
    extensions["magnus_dashboard"] = replace(before, company=company)
    try:
        yield
    finally:
        extensions["magnus_dashboard"] = before


@pytest.fixture
def proxy(company_api: Api) -> Iterator[None]:
    """The app behind a proxy at 10.0.0.7."""
    proxy = TrustedProxy(networks_in("10.0.0.7"), "X-Forwarded-Email", "X-Forwarded-Groups")
    with with_company(company_api, CompanySignIn(None, proxy, roles_in(ROLES))):
        yield


def sent_back(visitor: FlaskClient, person: str | None, after: str = "/audit") -> str:
    """Begins a sign-in and signs in as this person at the provider, or says no; the path that leads back."""
    begun = visitor.get(f"/sign-in/provider?next={after}")
    assert begun.status_code == 303
    form = {"action": "deny"} if person is None else {"sub": person}
    address = httpx.post(begun.headers["Location"], data=form).headers["Location"]
    assert address.startswith(f"{PUBLIC}/sign-in/callback?")
    return address.removeprefix(PUBLIC)


def signed_in(visitor: FlaskClient, person: str) -> TestResponse:
    return visitor.get(sent_back(visitor, person))


def token_of(page: TestResponse | httpx.Response) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', page.text)
    assert found
    return found[1]


def test_somebody_signs_in_at_the_web_process_as_it_runs_in_production(
    company_api: Api, word_model: Path, issuer: str, tmp_path: Path
) -> None:
    public = "http://localhost:8000"
    settings = small_service(company_api.engine.url.render_as_string(hide_password=False), word_model)
    with (
        running_web(at_provider(settings, issuer, public), tmp_path) as web,
        httpx.Client(base_url=web.url, timeout=60) as browser,
    ):
        assert browser.get("/queue").status_code == 401
        begun = browser.get("/sign-in/provider?next=/queue")
        sent_back = httpx.post(begun.headers["Location"], data={"sub": "alice"}).headers["Location"]
        ended = browser.get(sent_back.removeprefix(public))
        assert (ended.status_code, ended.headers["Location"]) == (303, "/queue"), ended.text
        page = browser.get("/queue")
        assert browser.post("/queue/pause", data={"token": token_of(page)}).status_code == 303
        actor = company_api.sql("select actor from audit_entries order by id desc limit 1")[0].actor
        assert actor == "alice@example.com (localhost, subject alice)"


def test_groups_without_submit_see_and_do_not_act(visitor: FlaskClient) -> None:
    assert signed_in(visitor, "carol").status_code == 303
    page = visitor.get("/queue")
    assert visitor.post("/queue/pause", data={"token": token_of(page)}).status_code == 403


@pytest.mark.parametrize(("person", "groups"), [("bob", "(visitors)"), ("dave", "(none)")])
def test_groups_without_operate_are_told_what_to_ask_for(visitor: FlaskClient, person: str, groups: str) -> None:
    answer = signed_in(visitor, person)
    assert answer.status_code == 403
    for part in (f"{person}@example.com", groups, "MAGNUS_OPERATOR_ROLES"):
        assert part in answer.text
    assert visitor.get_cookie(COOKIE) is None


def test_a_sign_in_ends_only_in_the_browser_in_which_it_began(company_api: Api, visitor: FlaskClient) -> None:
    path = sent_back(visitor, "alice")
    other = company_api.client.application.test_client()
    assert other.get(path).status_code == 400
    for kept in ("a.b", "...", "a.b.c./", "é"):
        other.set_cookie(ATTEMPT_COOKIE, kept, path=ATTEMPT_PATH)
        assert other.get(path).status_code == 400
    forged = re.sub(r"state=[^&]*", "state=another", path)
    assert visitor.get(forged).status_code == 400
    assert visitor.get(path).status_code == 400  # the wrong state ended the attempt
    assert visitor.get("/queue").status_code == 401


def test_a_code_works_once(company_api: Api, visitor: FlaskClient) -> None:
    path = sent_back(visitor, "alice")
    attempt = visitor.get_cookie(ATTEMPT_COOKIE, path=ATTEMPT_PATH)
    assert attempt is not None
    assert visitor.get(path).status_code == 303
    other = company_api.client.application.test_client()
    other.set_cookie(ATTEMPT_COOKIE, attempt.value, path=ATTEMPT_PATH)
    again = other.get(path)
    assert again.status_code == 401
    assert "invalid_grant" in again.text
    assert other.get_cookie(COOKIE) is None


def test_who_says_no_at_the_provider_is_not_signed_in(visitor: FlaskClient) -> None:
    path = sent_back(visitor, None)  # without the state, which RFC 6749 4.1.2.1 asks for and this provider leaves out
    attempt = visitor.get_cookie(ATTEMPT_COOKIE, path=ATTEMPT_PATH)
    assert attempt is not None
    answer = visitor.get(f"{path}&state={attempt.value.partition('.')[0]}")
    assert answer.status_code == 401
    assert "access_denied" in answer.text


def test_the_way_back_is_the_public_address_whatever_host_a_call_names(visitor: FlaskClient) -> None:
    begun = visitor.get("/sign-in/provider", headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example"})
    assert "evil.example" not in begun.headers["Location"]
    assert quote(f"{PUBLIC}/sign-in/callback", safe="") in begun.headers["Location"]


def test_signing_in_at_the_provider_leads_nowhere_else(visitor: FlaskClient) -> None:
    for elsewhere in ("https://evil.example/", "//evil.example", "/" + "a" * 3000):
        assert visitor.get(sent_back(visitor, "alice", elsewhere)).headers["Location"] == "/"


def test_a_session_has_the_scopes_that_its_groups_have_now(company_api: Api, visitor: FlaskClient) -> None:
    signed_in(visitor, "alice")
    provider = company_api.client.application.extensions["magnus_dashboard"].company.provider
    for company in (CompanySignIn(provider, None, {}), CompanySignIn(None, None, roles_in(ROLES))):
        with with_company(company_api, company):
            assert visitor.get("/queue").status_code == 401
    assert visitor.get("/queue").status_code == 200


def test_while_the_provider_is_silent_keys_and_password_sign_in(company_api: Api, visitor: FlaskClient) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = at_provider(small_service("postgresql://", Path()), address, PUBLIC)
        away = CompanySignIn(OpenIdProvider(settings, timeout=0.1), None, roles_in(ROLES))
        with with_company(company_api, away):
            answer = visitor.get("/sign-in/provider")
            assert answer.status_code == 503
            assert "127.0.0.1 does not answer" in answer.text
            assert 'name="secret"' in answer.text
            assert visitor.get("/sign-in").status_code == 200
            assert visitor.post("/sign-in", data={"secret": PASSWORD}).status_code == 303
            assert visitor.get("/queue").status_code == 200


@pytest.mark.usefixtures("proxy")
def test_a_trusted_proxys_person_acts_and_the_audit_says_who(company_api: Api, visitor: FlaskClient) -> None:
    at_proxy = {"REMOTE_ADDR": "10.0.0.7"}
    alice = {"X-Forwarded-Email": "alice@example.com", "X-Forwarded-Groups": "ops,staff"}
    page = visitor.get("/queue", headers=alice, environ_base=at_proxy)
    assert page.status_code == 200
    assert "Sign out" not in page.text
    own, elsewhere = {"token": token_of(page)}, {"Sec-Fetch-Site": "cross-site"}
    mallory = alice | {"X-Forwarded-Email": "mallory@example.com"}
    for headers, form in ((alice, {}), (alice | elsewhere, own), (mallory, own)):
        refused = visitor.post("/queue/pause", headers=headers, data=form, environ_base=at_proxy)
        assert refused.status_code == 403
    assert visitor.post("/queue/pause", headers=alice, data=own, environ_base=at_proxy).status_code == 303
    who = company_api.sql("select actor from audit_entries order by id desc limit 1")[0].actor
    assert who == "alice@example.com (by the proxy)"


@pytest.mark.usefixtures("proxy")
@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.8"])
def test_the_header_of_anybody_but_the_proxy_opens_nothing(visitor: FlaskClient, peer: str) -> None:
    headers = {"X-Forwarded-Email": "alice@example.com", "X-Forwarded-Groups": "ops", "X-Forwarded-For": "10.0.0.7"}
    stranger = {"REMOTE_ADDR": peer}
    assert visitor.get("/queue", headers=headers, environ_base=stranger).status_code == 401
    assert visitor.post("/queue/pause", headers=headers, environ_base=stranger).status_code == 401


@pytest.mark.usefixtures("proxy")
def test_a_person_of_the_proxy_without_a_role_is_told_what_to_ask_for(visitor: FlaskClient) -> None:
    bob = HTML | {"X-Forwarded-Email": "bob@example.com", "X-Forwarded-Groups": "visitors"}
    at_proxy = {"REMOTE_ADDR": "10.0.0.7"}
    sent = visitor.get("/queue", headers=bob, environ_base=at_proxy)
    assert urlsplit(sent.headers["Location"]).path == "/sign-in"
    page = visitor.get(sent.headers["Location"], headers=bob, environ_base=at_proxy)
    assert page.status_code == 403
    assert "(visitors)" in page.text
    assert 'name="secret"' in page.text
    assert visitor.post("/sign-in", data={"secret": PASSWORD}, headers=bob).status_code == 303
    assert visitor.get("/queue", headers=bob, environ_base=at_proxy).status_code == 200


def test_a_groups_header_that_a_client_adds_to_the_proxys_is_refused(
    module_database_url: str, word_model: Path, tmp_path: Path
) -> None:
    settings = small_service(module_database_url, word_model).model_copy(
        update={
            "proxy_user_header": "X-Forwarded-Email",
            "proxy_groups_header": "X-Forwarded-Groups",
            "trusted_proxies": "127.0.0.1",
            "operator_roles": ROLES,
        }
    )
    email, groups = ("X-Forwarded-Email", "bob@example.com"), ("X-Forwarded-Groups", "ops")
    with running_web(settings, tmp_path) as web:
        own = httpx.get(f"{web.url}/queue", headers=[email, groups], timeout=60)
        forged = httpx.get(f"{web.url}/queue", headers=[email, groups, ("x-forwarded-groups", "visitors")], timeout=60)
    assert (own.status_code, forged.status_code) == (200, 401)


def test_without_a_provider_a_web_process_loads_no_authlib(company_api: Api) -> None:
    environment = {"MAGNUS_DATABASE_URL": str(company_api.engine.url.render_as_string(False)), "PATH": ""}
    script = "import sys, webapp.app; webapp.app.create_app(); print('authlib' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert said.stdout.splitlines()[-1:] == ["False"], said.stderr


def test_without_a_provider_there_is_none_to_go_to(company_api: Api, visitor: FlaskClient) -> None:
    with with_company(company_api, CompanySignIn(None, None, {})):
        assert visitor.get("/sign-in/provider").status_code == 404
        assert visitor.get("/sign-in/callback?code=a&state=b").status_code == 404
