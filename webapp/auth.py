"""Who is asking: an API key for everything under /v1, a password for the dashboard."""

import hmac
import time

from flask import Response, g, request

from models import api_keys
from models.api_keys import Caller
from webapp.app_context import context
from webapp.client_errors import InvalidKey

DASHBOARD_USER = "magnus"


def require_key() -> None:
    """Before each request to /v1: find the key's tenant and count its request, or refuse."""
    if not request.path.startswith("/v1/"):
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise InvalidKey("You did not provide an API key: send 'Authorization: Bearer <key>'.")
    with context().sessions() as session:
        found = api_keys.find(session, given.strip())
    if found is None:
        raise InvalidKey("This API key is unknown or revoked.")
    context().limit.count(found.key_id, time.time())
    g.caller = found


def caller() -> Caller:
    """Who sent the current request."""
    found: Caller = g.caller
    return found


def tenant() -> str:
    """Whose requests the current request may see."""
    return caller().tenant


def require_dashboard_password() -> Response | None:
    """Before each page of the dashboard; without a password in the settings it stays shut."""
    password = context().dashboard_password
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
