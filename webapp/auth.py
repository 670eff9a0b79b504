"""Who sends a request: an API key for everything under /v1, a password for the dashboard."""

import hmac
import time

from flask import Response, g, request

from models import api_keys
from models.api_keys import Caller
from settings import DASHBOARD_USER
from webapp.app_context import current_context
from webapp.client_errors import InvalidKey

NEED_A_KEY = ("/v1/", "/tokenize", "/detokenize")  # how the addresses begin


def require_api_key() -> None:
    """Before each request to the API: find the tenant of its key and count it against the key's rate limit.

    Raises InvalidKey and RateLimited.
    """
    if not request.path.startswith(NEED_A_KEY):
        return
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise InvalidKey("You did not provide an API key: send 'Authorization: Bearer <key>'.")
    context = current_context()
    with context.sessions() as session:
        caller = api_keys.find(session, key.strip())
    if caller is None:
        raise InvalidKey("Incorrect API key provided: it is unknown or revoked.")
    context.rate_limit.count(caller.key_id, time.monotonic())
    g.caller = caller


def current_tenant() -> str:
    """The tenant whose key the current request carries; it sees this tenant's requests alone."""
    caller: Caller = g.caller
    return caller.tenant


def require_dashboard_password() -> Response | None:
    """Before each page of the dashboard: 401 without the password, 403 if the settings have none."""
    password = current_context().dashboard_password
    if password is None:
        return Response(
            "The dashboard is off: set MAGNUS_DASHBOARD_PASSWORD. Its user is 'magnus'.\n", 403, mimetype="text/plain"
        )
    given = request.authorization
    if (
        given is not None
        and given.type == "basic"
        and hmac.compare_digest((given.username or "").encode(), DASHBOARD_USER.encode())
        and hmac.compare_digest((given.password or "").encode(), password.encode())
    ):
        return None
    return Response(
        "Sign in as 'magnus' with the dashboard's password.\n",
        401,
        {"WWW-Authenticate": 'Basic realm="Magnus", charset="UTF-8"'},
        mimetype="text/plain",
    )
