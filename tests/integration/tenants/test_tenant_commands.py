"""`magnus keys`, `tenant`, `usage` and `webhooks`, against a real database and an API over HTTP."""

import getpass
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from werkzeug.serving import make_server

from cli.main import commands
from models.tenants.api_keys import READABLE_CHARACTERS
from settings import Settings
from tests.integration.api_service import Api

Magnus = Callable[..., Any]


@pytest.fixture
def magnus(web_settings: Settings, api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[Magnus]:
    """Runs a command as a user would; what it printed, as JSON where it was asked for."""
    server = make_server("127.0.0.1", 0, api.client.application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("MAGNUS_DATABASE_URL", str(web_settings.database_url))
    monkeypatch.setenv("MAGNUS_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MAGNUS_API_KEY", api.key)

    def run(*words: str, status: int = 0) -> Any:
        result = CliRunner().invoke(commands, words)
        assert result.exit_code == status, result.output
        return json.loads(result.stdout) if "--json" in words and status == 0 else result.stdout

    yield run
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "wrong",
    [
        ("--name", ""),
        ("--name", "  "),
        ("--name", "ci", "--tenant", ""),
        ("--name", "ci", "--expires", "2020-01-31"),
        *[("--name", "ci", "--scopes", scopes) for scopes in ("admin", "")],
        *[("--name", "ci", "--expires", expires) for expires in ("0d", "tomorrow", "9999999w", "90")],
    ],
)
def test_a_key_without_a_name_or_with_wrong_scopes_or_end_is_not_made(
    magnus: Magnus, api: Api, wrong: tuple[str, ...]
) -> None:
    before = api.sql("select count(*) from api_keys")
    magnus("keys", "create", *wrong, status=2)
    assert api.sql("select count(*) from api_keys") == before


def test_a_key_is_made_with_scopes_and_an_end(magnus: Magnus, api: Api) -> None:
    made = magnus(
        "keys", "create", "--name", "ci", "--tenant", "acme", "--scopes", "read", "--expires", "12h", "--json"
    )
    assert (made["scopes"], made["tenant"]) == (["read"], "acme")
    assert 12 * 3600 - 60 < made["expires_at"] - made["created_at"] <= 12 * 3600 + 60
    reader = Api(api.client, api.engine, made["key"])
    assert reader.call("GET", "/v1/responses").status_code == 200
    assert reader.call("POST", "/v1/responses", json={}).status_code == 403
    listed = magnus("keys", "list", "--json")[-1]
    assert listed == {name: value for name, value in made.items() if name != "key"}
    assert "read" in magnus("keys", "list")


def test_without_scopes_a_key_submits_and_reads_and_never_ends(magnus: Magnus) -> None:
    made = magnus("keys", "create", "--name", "ci", "--json")
    assert (made["scopes"], made["expires_at"]) == (["read", "submit"], None)
    dated = magnus("keys", "create", "--name", "ci", "--expires", "2099-01-31", "--json")
    assert dated["expires_at"] == 4_073_500_800.0


def test_what_is_set_for_a_tenant_is_listed_and_taken_back(magnus: Magnus) -> None:
    limits = (
        "--requests-per-minute",
        "600",
        "--queued-requests",
        "50",
        "--queued-tokens",
        str(10**12),
        "--priority-requests",
        "0",
        "--generated-tokens-per-minute",
        "90000",
        "--gpu-seconds-per-minute",
        "30",
        "--budget",
        "2.5price/month",
    )
    expected = {
        "tenant": "acme",
        "weight": 3.0,
        "requests_per_minute": 600,
        "queued_requests": 50,
        "queued_tokens": 10**12,
        "priority_requests": 0,
        "generated_tokens_per_minute": 90_000,
        "gpu_seconds_per_minute": 30,
        "budget": {"amount": 2.5, "unit": "price", "period": "month"},
    }
    assert magnus("tenant", "set", "acme", *limits, "--weight", "3", "--json") == expected
    assert magnus("tenant", "list", "--json") == [expected]
    back = magnus("tenant", "set", "acme", "--queued-requests", "default", "--budget", "default", "--json")
    assert back == {**expected, "queued_requests": None, "budget": None}
    magnus("tenant", "set", "globex", "--weight", "0.5")
    assert [one["tenant"] for one in magnus("tenant", "list", "--json")] == ["acme", "globex"]
    assert "globex" in magnus("tenant", "list")


@pytest.mark.usefixtures("magnus")
def test_a_budget_in_a_price_without_prices_is_set_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def warning(budget: str) -> str:
        result = CliRunner().invoke(commands, ["tenant", "set", "acme", "--budget", budget])
        assert result.exit_code == 0, result.output
        return result.stderr

    assert "MAGNUS_PRICES is not set here" in warning("50price/day")
    assert warning("50gpu_s/day") == warning("default") == ""
    monkeypatch.setenv("MAGNUS_PRICES", "gpu_hour=2.50")
    assert warning("50price/day") == ""


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--weight", "0"),
        ("--weight", "nan"),
        ("--weight", "inf"),
        ("--queued-requests", "0"),
        ("--queued-requests", "-1"),
        ("--queued-requests", str(2**31)),
        ("--queued-tokens", "9" * 5000),
        ("--requests-per-minute", "1.5"),
        ("--priority-requests", "-1"),
        ("--requests-per-minute", "²"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(magnus: Magnus, words: tuple[str, ...]) -> None:
    magnus("tenant", "set", "acme", *words, status=2)
    assert magnus("tenant", "list", "--json")[0]["weight"] == 1.0


def test_a_webhook_lives_through_the_commands(magnus: Magnus, api: Api) -> None:
    made = magnus("webhooks", "create", "https://example.com/hook", "--event", "response.cancelled", "--json")
    assert made["secret"].startswith("whsec_")
    assert magnus("webhooks", "list", "--json") == [{**made, "secret": None}]
    assert "https://example.com/hook" in magnus("webhooks", "list")
    assert magnus("webhooks", "rotate", made["id"], "--overlap-s", "60").startswith("whsec_")
    api.call("POST", f"/v1/responses/{api.submit()['id']}/cancel")
    (delivery,) = magnus("webhooks", "deliveries", made["id"], "--json")
    assert delivery["type"] == "response.cancelled"
    assert "waiting" in magnus("webhooks", "deliveries", made["id"])
    assert "waiting" in magnus("webhooks", "redeliver", made["id"], str(delivery["id"]))
    magnus("webhooks", "redeliver", made["id"], "99999", status=1)
    assert magnus("webhooks", "delete", made["id"], "--json")["deleted"] is True
    assert magnus("webhooks", "list", "--json") == []
    magnus("webhooks", "delete", "../responses", status=1)
    magnus("webhooks", "create", "http://10.0.0.1/", status=1)


def test_commands_that_change_the_database_are_in_the_audit_with_user_and_host_and_others_are_not(
    magnus: Magnus, api: Api
) -> None:
    magnus("tenant", "set", "acme", "--weight", "3")
    magnus("tenant", "list")
    magnus("keys", "list", "--json")
    magnus("keys", "revoke", api.key)
    found = api.sql("select actor, action, target, details from audit_entries order by id")
    assert [(one.action, one.target, one.details) for one in found] == [
        ("tenant set", "acme", {"weight": "3.0"}),
        ("keys revoke", f"{api.key[:READABLE_CHARACTERS]}…", {}),
    ]
    assert {one.actor for one in found} == {f"{getpass.getuser()}@{socket.gethostname()}"}
