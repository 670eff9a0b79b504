"""A real OpenID provider (oidc-provider-mock) in a process of its own on loopback, with four people."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import httpx
from pydantic import SecretStr

from settings import Settings

# The provider's people and their groups; each one's subject is the name.
PEOPLE = {"alice": ["ops"], "carol": ["staff"], "bob": ["visitors"], "dave": []}
ROLES = "ops=operate,submit,read; staff=operate"


@contextmanager
def running_provider() -> Iterator[str]:
    """Starts the provider and waits until it answers; yields the issuer's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    claims = [
        {"sub": name, "email": f"{name}@example.com", "email_verified": True, "groups": groups}
        for name, groups in PEOPLE.items()
    ]
    options = [part for one in claims for part in ("--user-claims", json.dumps(one))]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options]
    issuer = f"http://localhost:{port}"  # for browsers another site than 127.0.0.1, where the tests have the dashboard
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            pause = Event()
            while True:
                assert process.poll() is None, "the provider ended"
                try:
                    httpx.get(issuer + "/jwks", timeout=60)
                    break
                except httpx.ConnectError:
                    pause.wait(0.05)
            yield issuer
        finally:
            process.kill()


def at_provider(settings: Settings, issuer: str, public_url: str) -> Settings:
    """These settings with sign-in at the provider."""
    given = {
        "oidc_issuer": issuer,
        "oidc_client_id": "magnus",
        "oidc_client_secret": SecretStr("any will do"),
        "public_url": public_url,
        "operator_roles": ROLES,
    }
    return settings.model_copy(update=given)
