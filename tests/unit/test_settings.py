"""Settings: what is documented is what there is, and a misspelt name is refused."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from setting_mistakes import problems_of
from setting_parameters import Parameters
from settings import BUNDLED_MODEL, GONE, Settings, UnknownSetting, read_settings

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, str]:
    lines = re.findall(r"^# (MAGNUS_\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    return dict(lines)


def test_the_example_lists_every_setting_in_the_order_of_the_code() -> None:
    assert list(documented()) == [f"MAGNUS_{name.upper()}" for name in Settings.model_fields]


def test_the_example_shows_the_defaults() -> None:
    shown = documented()
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else str(field.default)
        expected = str(BUNDLED_MODEL.relative_to(ROOT)) if name == "model" else default
        assert shown[f"MAGNUS_{name.upper()}"] == expected


def test_the_example_describes_every_setting() -> None:
    text = (ROOT / ".env.example").read_text().replace("\n# ", " ")
    for field in Settings.model_fields.values():
        assert field.description is not None
        assert field.description in text


def test_a_misspelt_setting_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUS_POLICI", "vs")
    with pytest.raises(UnknownSetting, match="did you mean MAGNUS_POLICY"):
        read_settings()


@pytest.mark.parametrize("name", GONE)
def test_a_setting_of_an_earlier_release_is_refused_with_what_replaces_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert name.removeprefix("MAGNUS_").lower() not in Settings.model_fields
    monkeypatch.setenv(name, "1")
    with pytest.raises(UnknownSetting) as refused:
        read_settings()
    assert str(refused.value) == f"{name} is no setting any more: {GONE[name]}"


def test_the_example_describes_every_parameter() -> None:
    text = (ROOT / ".env.example").read_text()
    for name, field in Parameters.model_fields.items():
        default = "" if field.default is None else f"={field.default}"
        assert f"#   {name}{default}: {field.description}\n" in text


def test_parameters_are_given_as_names_and_values_and_written_as_they_were_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAGNUS_PARAMETERS", "slice_tokens=64, prefix_cache=off")
    parameters = read_settings().parameters
    assert (parameters.slice_tokens, parameters.prefix_cache, parameters.guess_tokens) == (64, False, 16)
    monkeypatch.setenv("MAGNUS_PARAMETERS", str(parameters))
    assert read_settings().parameters == parameters


def test_an_override_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNUS_POLICY", "vs")
    assert read_settings(policy="scls").policy == "scls"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("KV_BUDGET", "20", "did you mean 20GiB?"),
        ("KV_BUDGET", "0GiB", "for example 20GiB"),
        ("KV_BUDGET", "many", "for example 20GiB"),
        ("DATABASE_URL", "mysql://root:secret@h/d", "only Postgres will do"),
        ("DATABASE_URL", "postgresql://u:secret@h:99999/d", "port"),
        ("REDIS_URL", "sentinel://:secret@h:26379/0", "Sentinel is not supported"),
        ("REDIS_URL", "http://:secret@h", "redis://"),
        ("REDIS_URL", "redis://:secret@h:many/0", "port"),
        ("DEVICES", "gpu0", "cuda:0,cuda:1"),
        ("LEASE_S", "0.4", "MAGNUS_HEARTBEAT_S"),
        ("PARAMETERS", "slice_tokens", "NAME=VALUE"),
        ("PARAMETERS", "slice_tokens=0", "slice_tokens: Input should be greater"),
        ("PARAMETERS", "slice_token=1", "slice_token: there is no such parameter; `magnus settings` lists every one"),
        ("POLICY", "fastest", "MAGNUS_POLICY"),
        ("RATE_LIMIT", "many", "MAGNUS_RATE_LIMIT"),
        ("OIDC_ISSUER", "http://sso.example.com/secret", "https://"),
        ("OIDC_ISSUER", "https://magnus:secret@sso.example.com", "https://"),
        ("OIDC_ISSUER", "https://sso.example.com", "MAGNUS_PUBLIC_URL"),
        ("OIDC_SCOPE", "email", "openid"),
        ("PUBLIC_URL", "https://example.com/magnus", "root of its site"),
        ("OPERATOR_ROLES", "ops", "GROUP=SCOPES"),
        ("OPERATOR_ROLES", "ops=operate,rule", "GROUP=SCOPES"),
        ("OPERATOR_ROLES", "ops=submit,read", "scope operate"),
        ("PRICES", "priority=2", "gpu_hour=2.50"),
        ("PRICES", "gpu_hour=free", "gpu_hour=2.50"),
        ("PRICES", "gpu_hour=-1", "gpu_hour=2.50"),
        ("PRICES", "gpu_hour=inf", "gpu_hour=2.50"),
        ("PRICES", "gpu_hour=2,fast=3", "no service tier fast"),
        ("MIN_DEADLINE_CHANCE", "0.99", "0.95"),
        ("PROXY_USER_HEADER", "X User", "MAGNUS_PROXY_USER_HEADER"),
        ("PROXY_USER_HEADER", "X-User", "MAGNUS_TRUSTED_PROXIES"),
        ("TRUSTED_PROXIES", "proxy.local", "10.1.0.0/24"),
        ("TRUSTED_PROXIES", "10.0.0.7/8", "10.1.0.0/24"),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_the_remedy_and_no_password(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"MAGNUS_{name}", value)
    with pytest.raises(ValidationError) as refused:
        read_settings()
    told = "\n".join(problems_of(refused.value))
    assert f"MAGNUS_{name}" in told
    assert said in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KV_BUDGET", "20GiB"),
        ("KV_BUDGET", "1.5 gb"),
        ("KV_BUDGET", "auto"),
        ("DEVICES", "cuda:0, cuda:1"),
        ("DATABASE_URL", "postgresql+psycopg://u@[::1]:5432/d?options=-csearch_path%3Dfoo"),
        ("DATABASE_URL", "postgresql://u@h1:5432,h2:5432/d"),
        ("DATABASE_URL", "postgres://postgres@/magnus?host=/run/postgresql"),
        ("REDIS_URL", "rediss://:p@h/0"),
        ("REDIS_URL", "unix:///run/redis.sock"),
        ("OPERATOR_ROLES", "cn=ops,dc=example=operate, submit; staff=operate;"),
        ("PUBLIC_URL", "http://localhost:8000"),
        ("PRICES", "gpu_hour=2.5, priority=2,flex=0.4"),
    ],
)
def test_a_right_value_is_taken(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"MAGNUS_{name}", value)
    assert getattr(read_settings(), name.lower()) == value


def test_an_empty_value_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OIDC_ISSUER", "DASHBOARD_PASSWORD", "MAX_PROMPT_TOKENS", "DATABASE_URL"):
        monkeypatch.setenv(f"MAGNUS_{name}", "")
    assert read_settings() == Settings()


def test_labse_is_the_papers_encoder_from_the_hub_or_from_a_directory_of_its_name(tmp_path: Path) -> None:
    assert Settings(state_dir=tmp_path, encoder="labse").encoder == "sentence-transformers/LaBSE"
    (tmp_path / "models" / "labse").mkdir(parents=True)
    assert Settings(state_dir=tmp_path, encoder="labse").encoder == str(tmp_path / "models" / "labse")
    assert Settings(state_dir=tmp_path, model=str(tmp_path)).model == str(tmp_path)
