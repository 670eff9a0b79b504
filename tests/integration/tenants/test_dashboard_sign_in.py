"""Who may use the dashboard: sessions by key and password, scopes, forms of other sites, the audit of every action."""

import re
from base64 import b64encode

import pytest
from flask.testing import FlaskClient
from pydantic import SecretStr

from models.connections.session import make_sessions
from models.tenants import api_keys
from models.tenants.api_keys import Scope
from protocol.requests.client_prompt import application_name
from settings import Settings
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage
from webapp.dashboard.operator_sign_in import COOKIE

PASSWORD = "open sesame, please"
JOB = f"resp_{1:032x}"
# Every form of the dashboard, with what it sends. A route of another method than GET that is missing here fails a test.
FORMS: dict[str, dict[str, str]] = {
    "/policy": {"policy": "vs"},
    "/queue/pause": {},
    "/queue/resume": {},
    "/workers/drain": {"worker": "w1"},
    "/workers/resume": {"worker": "w1"},
    "/predictions/activate": {"version": "length-1"},
    "/jobs/act": {"action": "cancel", "status": "queued"},
    "/jobs/<id>/act": {"action": "cancel"},
    "/jobs/<id>/texts": {},
    "/batches/<id>/<action>": {},
    "/webhooks/<id>/redeliver": {},
    "/sign-out": {},
}
ACTIONS = [rule for rule in FORMS if rule not in ("/sign-out", "/jobs/<id>/texts")]


@pytest.fixture
def web_settings(web_settings: Settings) -> Settings:
    """Settings with a known password."""
    return web_settings.model_copy(update={"dashboard_password": SecretStr(PASSWORD)})


def a_key(api: Api, *scopes: Scope) -> str:
    with make_sessions(api.engine).begin() as session:
        return api_keys.create(session, name="ops", tenant="acme", scopes=scopes)[1]


def sign_in(api: Api, secret: str) -> FlaskClient:
    """A client of its own, signed in."""
    client: FlaskClient = api.client.application.test_client()
    assert client.post("/sign-in", data={"secret": secret}).status_code == 303
    return client


def token_of(client: FlaskClient) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', client.get("/audit").text)
    assert found
    return found[1]


def path_of(rule: str) -> str:
    return rule.replace("<id>", JOB).replace("<action>", "pause")


def audited(api: Api) -> list[str]:
    with api.engine.connect() as connection:
        return [row[0] for row in connection.exec_driver_sql("select action from audit_entries order by id")]


def test_every_form_of_the_dashboard_is_tried_here(api: Api) -> None:
    rules = {
        rule.rule
        for rule in api.client.application.url_map.iter_rules()
        if rule.endpoint.startswith("dashboard.") and "POST" in (rule.methods or ())
    }
    assert rules == set(FORMS)


def test_a_key_needs_the_scope_operate(api: Api) -> None:
    for secret in (a_key(api, Scope.read, Scope.submit), "magnus-unknown", "", "guess"):
        refused = api.client.post("/sign-in", data={"secret": secret})
        assert refused.status_code == 401
        assert COOKIE not in refused.headers.get("Set-Cookie", "")
    assert sign_in(api, a_key(api, Scope.operate)).get("/").status_code == 200


@pytest.mark.parametrize("after", ["/a\r\nX: y", "/a\n", "/\t/other.example", "//other.example", "/\\other.example"])
def test_signing_in_leads_to_no_address_with_control_characters_and_to_no_other_site(api: Api, after: str) -> None:
    assert api.client.get("/sign-in", query_string={"next": after}).status_code == 200
    answer = api.client.post("/sign-in", data={"secret": PASSWORD, "next": after})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")


def test_the_cookie_is_no_scripts_and_no_other_sites(api: Api) -> None:
    cookie = api.client.post("/sign-in", data={"secret": PASSWORD}).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie


@pytest.mark.parametrize("rule", FORMS)
def test_a_form_without_this_sessions_token_changes_nothing(api: Api, rule: str) -> None:
    client, other = sign_in(api, PASSWORD), sign_in(api, PASSWORD)
    for token in ({}, {"token": "0" * 64}, {"token": token_of(other)}):
        assert client.post(path_of(rule), data=FORMS[rule] | token).status_code == 403
    from_elsewhere = {"Sec-Fetch-Site": "cross-site"}
    own = {"token": token_of(client)}
    assert client.post(path_of(rule), data=FORMS[rule] | own, headers=from_elsewhere).status_code == 403
    assert audited(api) == []
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("rule", ACTIONS)
def test_to_act_needs_the_scope_submit(api: Api, rule: str) -> None:
    client = sign_in(api, a_key(api, Scope.operate, Scope.read))
    assert client.post(path_of(rule), data=FORMS[rule] | {"token": token_of(client)}).status_code == 403
    assert audited(api) == []


@pytest.mark.parametrize("rule", ["/policy", "/queue/pause", "/queue/resume", "/jobs/act", "/jobs/<id>/act"])
def test_every_action_is_audited_with_who_did_it(api: Api, rule: str) -> None:
    client = sign_in(api, a_key(api, Scope.operate, Scope.submit))
    assert client.post(path_of(rule), data=FORMS[rule] | {"token": token_of(client)}).status_code in (200, 303)
    assert len(audited(api)) == 1
    page = client.get("/audit").text
    assert "(ops, tenant acme)" in page


def test_texts_need_the_scope_read(api: Api) -> None:
    client = sign_in(api, a_key(api, Scope.operate, Scope.submit))
    assert client.post(f"/jobs/{JOB}/texts", data={"token": token_of(client)}).status_code == 403
    reader = sign_in(api, a_key(api, Scope.operate, Scope.read))
    read = reader.post(f"/jobs/{JOB}/texts", data={"token": token_of(reader)})
    assert read.status_code == 404  # nobody refused, but there is no such job
    assert audited(api) == ["read texts"]


def test_the_words_of_instructions_need_the_scope_read_and_their_reading_is_audited_once(api: Api) -> None:
    digest = application_name({}, "Translate\n the   text.")
    Stage(api.engine).request(JOB, application=digest, instructions="Translate\n the   text.")
    without = sign_in(api, a_key(api, Scope.operate, Scope.submit))
    assert digest in without.get("/jobs").text
    assert "Translate" not in without.get("/jobs").text
    assert audited(api) == []
    reader = sign_in(api, a_key(api, Scope.operate, Scope.read))
    for path in ("/jobs", f"/jobs/{JOB}", f"/jobs?application={digest}"):
        assert "“Translate the text.”" in reader.get(path).text
    assert audited(api) == ["read texts"]


def test_an_application_is_not_called_by_words_that_its_name_is_no_digest_of(api: Api) -> None:
    stage = Stage(api.engine)
    stage.request(JOB, application="0123456789ab", instructions="Secret.")
    stage.request(f"resp_{2:032x}", application=application_name({}, ""))
    page = sign_in(api, PASSWORD).get("/jobs").text
    assert "0123456789ab" in page
    assert "Secret" not in page
    assert "no instructions" in page


def test_no_action_on_all_jobs_goes_without_a_filter(api: Api) -> None:
    Stage(api.engine).request(JOB)
    client = sign_in(api, PASSWORD)
    assert "act?action=cancel" not in client.get("/jobs").text
    assert "wait or run (1)" in client.get("/jobs?status=queued").text
    assert client.get("/jobs/act?action=cancel").status_code == 400
    assert client.post("/jobs/act", data={"action": "cancel", "token": token_of(client)}).status_code == 400
    assert audited(api) == []


def test_a_session_ends_with_its_key_and_with_signing_out(api: Api) -> None:
    key = a_key(api, Scope.operate)
    client = sign_in(api, key)
    with make_sessions(api.engine).begin() as session:
        assert api_keys.revoke(session, key) == 1
    assert client.get("/queue").status_code == 401
    other = sign_in(api, PASSWORD)
    assert other.post("/sign-out", data={"token": token_of(other)}).status_code == 303
    assert other.get("/queue").status_code == 401


def test_the_password_in_a_call_shows_pages_and_acts_on_nothing(api: Api) -> None:
    basic = {"Authorization": "Basic " + b64encode(f"magnus:{PASSWORD}".encode()).decode()}
    assert api.client.get("/queue", headers=basic).status_code == 200
    assert api.client.post("/queue/pause", headers=basic, data={"token": ""}).status_code == 403
    wrong = {"Authorization": "Basic " + b64encode(b"magnus:guess").decode()}
    assert api.client.get("/queue", headers=wrong).status_code == 401


def test_signing_in_leads_nowhere_else(api: Api) -> None:
    for elsewhere in ("https://x.example/", "//x.example/", "/\\x.example", "/\t/x.example", "javascript:x", "//["):
        answer = api.client.post("/sign-in", data={"secret": PASSWORD, "next": elsewhere})
        assert answer.headers["Location"] == "/"


def test_a_browser_is_sent_to_the_form_and_a_script_gets_a_401(api: Api) -> None:
    browser = api.client.get("/queue?model=a", headers={"Accept": "text/html,*/*;q=0.8"})
    assert browser.status_code == 303
    assert browser.headers["Location"] == "/sign-in?next=/queue?model%3Da"
    live = api.client.get("/queue", headers={"Accept": "text/html", "X-Magnus-Live": "1"})
    assert live.status_code == 401
    assert "WWW-Authenticate" not in live.headers


@pytest.mark.parametrize(
    "path", ["/jobs?tenant=%00", "/jobs?application=a%00b", "/webhooks/%00", "/audit?before=99999999999999999999"]
)
def test_what_is_no_name_is_refused(api: Api, path: str) -> None:
    assert sign_in(api, PASSWORD).get(path).status_code in (400, 404)
