"""Signs people in at an OpenID provider: authorization code flow with PKCE, state and nonce, by authlib.

Only imported if MAGNUS_OIDC_ISSUER is set. Each call to the provider is bounded by WITHIN_S, and holds no connection to
the database; the sign-in page itself makes no such call.
"""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
from authlib.integrations.base_client import BaseApp, OAuth2Mixin, OAuthError, OpenIDMixin
from authlib.integrations.httpx_client import OAuth2Client
from joserfc.errors import JoseError
from pydantic import BaseModel, Field

from settings import Settings
from webapp.dashboard.people import Person, ProviderAway, SignInAttempt, SignInRefused, printable

CALLBACK = "/sign-in/callback"
WITHIN_S = 5.0  # longest wait to connect, to send, and for each read of an answer; not tuned
METADATA_S = 3600.0  # providers announce new keys and addresses days ahead
CLOCK_SKEW_S = 30  # how far the provider's clock may be from ours; hosts with NTP differ by less than a second
# Asymmetric signatures only: the keys that the provider publishes verify them and cannot make them.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")


# The exceptions of a call to a provider that is down, or whose answer is malformed.
NO_ANSWER = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError)


class ProviderMetadata(BaseModel):
    """The fields of a provider's discovery document that Magnus needs."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    id_token_signing_alg_values_supported: list[str] = Field(default=["RS256"])
    token_endpoint_auth_methods_supported: list[str] = Field(default=["client_secret_basic"])


class OpenIdClient(OAuth2Mixin, OpenIDMixin, BaseApp):  # type: ignore[misc]  # authlib has no types
    """authlib's client of a provider over httpx2; it keeps the provider's keys, and reads them again for a new key."""

    client_cls = OAuth2Client


class OpenIdProvider:
    """The provider of MAGNUS_OIDC_ISSUER."""

    def __init__(self, settings: Settings, **http: Any) -> None:
        """`http` are further arguments of httpx2's client."""
        secret = settings.oidc_client_secret
        self.issuer = str(settings.oidc_issuer)
        self.name = str(urlsplit(self.issuer).hostname)
        self.public_url = str(settings.public_url)
        self._claim, self._scope = settings.oidc_claim, settings.oidc_scope
        self._id, self._secret = settings.oidc_client_id, secret.get_secret_value() if secret else None
        self._http = {"timeout": WITHIN_S} | http
        self._known: tuple[float, OpenIdClient] | None = None  # when the client's metadata were read

    def begin(self) -> tuple[str, SignInAttempt]:
        """Returns the address at which a person signs in, and the attempt for `finish`; raises ProviderAway."""
        begun = self.discover().create_authorization_url(self.public_url + CALLBACK)
        return begun["url"], SignInAttempt(begun["state"], begun["nonce"], begun["code_verifier"])

    def finish(self, code: str, attempt: SignInAttempt) -> Person:
        """Returns who signed in, as the ID token for this code says; raises SignInRefused, ProviderAway."""
        client = self.discover()
        expected = {
            "iss": {"essential": True, "value": client.server_metadata["issuer"]},
            "aud": {"essential": True, "value": self._id},
        }
        try:
            token = client.fetch_access_token(self.public_url + CALLBACK, code=code, code_verifier=attempt.verifier)
            claims = client.parse_id_token(token, attempt.nonce, expected, leeway=CLOCK_SKEW_S)
        except (OAuthError, JoseError) as error:
            reason = printable(str(error)).rstrip(": ")
            raise SignInRefused(f"{self.name} did not confirm this sign-in: {reason}.") from error
        except NO_ANSWER as error:
            raise self._away(error) from error
        if claims is None:
            raise SignInRefused(f"{self.name} sent no ID token.")
        return Person(self._name_in(claims), self._groups_in(claims))

    def discover(self) -> OpenIdClient:
        """Returns a client with the provider's metadata of the last hour; raises ProviderAway."""
        if self._known is not None and time.monotonic() - self._known[0] < METADATA_S:
            return self._known[1]
        try:
            with httpx2.Client(**self._http) as http:
                answer = http.get(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
                answer.raise_for_status()
            metadata = ProviderMetadata.model_validate_json(answer.content)
        except NO_ANSWER as error:
            raise self._away(error) from error
        if metadata.issuer.rstrip("/") != self.issuer.rstrip("/"):
            raise ProviderAway(f"{self.name} calls itself {printable(metadata.issuer)}, unlike MAGNUS_OIDC_ISSUER.")
        client = self._client_of(metadata)
        self._known = time.monotonic(), client
        return client

    def _client_of(self, metadata: ProviderMetadata) -> OpenIdClient:
        methods = metadata.token_endpoint_auth_methods_supported
        by_post = "client_secret_post" in methods and "client_secret_basic" not in methods
        sent = "none" if self._secret is None else "client_secret_post" if by_post else "client_secret_basic"
        signed = [one for one in metadata.id_token_signing_alg_values_supported if one in ALGORITHMS]
        flow = {"scope": self._scope, "code_challenge_method": "S256", "token_endpoint_auth_method": sent}
        return OpenIdClient(
            None,
            client_id=self._id,
            client_secret=self._secret,
            client_kwargs=self._http | flow,
            issuer=metadata.issuer,
            authorization_endpoint=metadata.authorization_endpoint,
            token_endpoint=metadata.token_endpoint,
            jwks_uri=metadata.jwks_uri,
            id_token_signing_alg_values_supported=signed or ["RS256"],
        )

    def _away(self, error: Exception) -> ProviderAway:
        reason = printable(str(error)) if isinstance(error, httpx2.HTTPError) else type(error).__name__
        return ProviderAway(f"{self.name} does not answer as it should: {reason}. Try again, or use a key.")

    def _name_in(self, claims: Mapping[str, Any]) -> str:
        """Returns the person's usual name and the subject; only the subject is certain to be unique."""
        names = [claims.get("preferred_username"), claims.get("email"), claims.get("name")]
        if _has_own_address(claims):
            names.insert(0, claims.get("email"))
        called = next((one for one in names if isinstance(one, str) and one), "somebody")
        return f"{printable(called)} ({self.name}, subject {printable(claims['sub'])})"

    def _groups_in(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        if self._claim == "email" and not _has_own_address(claims):
            return ()
        given = claims.get(self._claim)
        values = given if isinstance(given, list) else [given]
        return tuple(value for value in values if isinstance(value, str))


def _has_own_address(claims: Mapping[str, Any]) -> bool:
    """Returns whether the provider has checked that the email address is this person's."""
    return claims.get("email_verified") in (True, "true")  # some providers send a text
