"""What a provider may say: only a token that it signed for this sign-in names a person; a provider away is no fault."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from pydantic import SecretStr

from settings import Settings
from webapp.dashboard.openid_provider import OpenIdProvider
from webapp.dashboard.people import ProviderAway, SignInAttempt, SignInRefused

ISSUER, CLIENT, SECRET = "https://sso.example.com/realms/company", "magnus", "s3cret"
CALLBACK = "https://magnus.example.com/sign-in/callback"
KEY = ECKey.generate_key("P-256", {"kid": "one"})


class ForgingProvider:
    """A provider whose tokens are as a test wants them, and which checks what Magnus sends."""

    def __init__(self) -> None:
        self.key, self.token, self.challenge = KEY, "", ""
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "authorization_endpoint": ISSUER + "/authorize",
            "token_endpoint": ISSUER + "/token",
            "jwks_uri": ISSUER + "/keys",
            "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
        }
        self.asked: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        page = request.url.path.rpartition("/")[2]
        self.asked.append(page)
        if page == "keys":
            return httpx2.Response(200, json={"keys": [self.key.as_dict(private=False)]})
        if page == "openid-configuration":
            return httpx2.Response(200, json=self.metadata)
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
        assert (form["code"], form["redirect_uri"]) == ("code", CALLBACK)
        given = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        assert request.headers["Authorization"] == f"Basic {given}"
        return httpx2.Response(200, json={"access_token": "a", "token_type": "Bearer", "id_token": self.token})


class SignIn:
    """A sign-in that began, with the provider on the other side."""

    def __init__(self, **settings: Any) -> None:
        self.other = ForgingProvider()
        given = Settings(
            oidc_issuer=ISSUER,
            oidc_client_id=CLIENT,
            oidc_client_secret=SecretStr(SECRET),
            public_url="https://magnus.example.com",
            operator_roles="ops=operate",
            **settings,
        )
        self.provider = OpenIdProvider(given, transport=httpx2.MockTransport(self.other))
        address, self.attempt = self.provider.begin()
        self.query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        self.other.challenge = self.query["code_challenge"]

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        made = {"iss": ISSUER, "aud": CLIENT, "sub": "7", "nonce": self.attempt.nonce, "iat": now, "exp": now + 60}
        return {name: value for name, value in (made | changed).items() if value is not None}

    def finish(self, token: str) -> Any:
        self.other.token = token
        return self.provider.finish("code", self.attempt)


def signed(claims: dict[str, Any], key: ECKey = KEY) -> str:
    return jwt.encode({"alg": "ES256", "kid": key.kid}, claims, key)


def test_a_sign_in_has_state_nonce_and_a_challenge_and_comes_back_to_the_public_address() -> None:
    first, second = SignIn(), SignIn()
    assert first.query["redirect_uri"] == CALLBACK
    assert (first.query["response_type"], first.query["code_challenge_method"]) == ("code", "S256")
    assert (first.query["state"], first.query["nonce"]) == (first.attempt.state, first.attempt.nonce)
    assert first.query["scope"] == "openid email profile"
    assert not {*vars_of(first.attempt)} & {*vars_of(second.attempt)}


def vars_of(attempt: SignInAttempt) -> tuple[str, str, str]:
    return attempt.state, attempt.nonce, attempt.verifier


def test_the_right_token_names_the_person_and_their_groups() -> None:
    begun = SignIn()
    person = begun.finish(signed(begun.claims(preferred_username="alice", groups=["ops", "staff", 3])))
    assert person.name == "alice (sso.example.com, subject 7)"
    assert person.groups == ("ops", "staff")


def test_the_provider_is_asked_for_its_addresses_and_keys_once() -> None:
    begun = SignIn()
    for _ in range(3):
        begun.finish(signed(begun.claims()))
    assert sorted(begun.other.asked) == ["keys", "openid-configuration", "token", "token", "token"]


IN_A_CENTURY = 4_900_000_000


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": None},
        {"aud": ["another"], "azp": CLIENT},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"sub": None},
        {"exp": 1},
        {"exp": None},
        {"iat": IN_A_CENTURY},
        {"nbf": IN_A_CENTURY},
    ],
    ids=str,
)
def test_a_token_for_something_else_is_refused(changed: dict[str, Any]) -> None:
    begun = SignIn()
    with pytest.raises(SignInRefused, match=r"sso\.example\.com did not confirm"):
        begun.finish(signed(begun.claims(**changed)))


def test_clocks_may_differ_by_half_a_minute() -> None:
    begun, now = SignIn(), int(time.time())
    begun.finish(signed(begun.claims(exp=now - 20)))
    begun.finish(signed(begun.claims(iat=now + 20)))
    with pytest.raises(SignInRefused):
        begun.finish(signed(begun.claims(exp=now - 40)))


def test_a_signature_of_another_key_of_none_or_of_the_public_key_as_a_secret_is_refused() -> None:
    begun = SignIn()
    foreign = ECKey.generate_key("P-256", {"kid": "one"})
    claims = encoded(json.dumps(begun.claims()).encode())
    unsigned = encoded(b'{"alg":"none"}') + "." + claims
    by_public_key = encoded(b'{"alg":"HS256","kid":"one"}') + "." + claims
    mac = encoded(hmac.new(KEY.as_pem(private=False), by_public_key.encode(), "sha256").digest())
    for token in (signed(begun.claims(), foreign), f"{unsigned}.", f"{by_public_key}.{mac}", "no token", ""):
        with pytest.raises(SignInRefused):
            begun.finish(token)


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def test_a_new_key_of_the_provider_is_fetched_once_a_token_names_it() -> None:
    begun = SignIn()
    begun.finish(signed(begun.claims()))
    begun.other.key = ECKey.generate_key("P-256", {"kid": "two"})
    assert begun.finish(signed(begun.claims(), begun.other.key)).name.startswith("somebody")


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({"preferred_username": "al", "email": "a@x.org", "email_verified": True}, "a@x.org"),
        ({"preferred_username": "al", "email": "a@x.org", "email_verified": "true"}, "a@x.org"),
        ({"preferred_username": "al", "email": "boss@x.org"}, "al"),
        ({"name": "Al\n\x00 Bo", "email": ["a@x.org"]}, "Al Bo"),
        ({}, "somebody"),
    ],
)
def test_people_are_called_by_an_address_that_is_theirs_else_by_their_name(claims: dict[str, Any], named: str) -> None:
    begun = SignIn()
    assert begun.finish(signed(begun.claims(**claims))).name == f"{named} (sso.example.com, subject 7)"


def test_an_address_gives_a_role_only_if_the_provider_checked_it() -> None:
    begun = SignIn(oidc_claim="email")
    assert begun.finish(signed(begun.claims(email="a@x.org"))).groups == ()
    assert begun.finish(signed(begun.claims(email="a@x.org", email_verified=False))).groups == ()
    assert begun.finish(signed(begun.claims(email="a@x.org", email_verified=True))).groups == ("a@x.org",)


@pytest.mark.parametrize("groups", [None, 3, {"ops": True}, [["ops"]], ""])
def test_a_claim_of_another_kind_gives_no_role(groups: object) -> None:
    begun = SignIn()
    assert "ops" not in begun.finish(signed(begun.claims(groups=groups))).groups


def down(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("nothing came", request=request)


@pytest.mark.parametrize(
    "answers",
    [
        down,
        lambda _: httpx2.Response(503),
        lambda _: httpx2.Response(301, headers={"Location": "https://elsewhere.example"}),
        lambda _: httpx2.Response(200, text="<html>maintenance</html>"),
        lambda _: httpx2.Response(200, json=[]),
        lambda _: httpx2.Response(200, json=ForgingProvider().metadata | {"issuer": "https://evil.example"}),
    ],
)
def test_a_provider_that_is_away_is_told_by_name_and_asked_again_next_time(answers: Any) -> None:
    begun = SignIn()
    calls = [answers, begun.other]
    provider = OpenIdProvider(
        Settings(
            oidc_issuer=ISSUER, oidc_client_id=CLIENT, public_url="https://m.example.com", operator_roles="ops=operate"
        ),
        transport=httpx2.MockTransport(lambda request: calls.pop(0)(request)),
    )
    with pytest.raises(ProviderAway, match=r"^sso\.example\.com"):
        provider.begin()
    provider.begin()
