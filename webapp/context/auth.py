"""Finds the tenant of a request by its API key, and checks the rate and the scope of that key."""

import re
import time
from functools import cache

import structlog
from flask import Response, g, request
from sqlalchemy.exc import SQLAlchemyError

from models.tenants import api_keys
from models.tenants.api_keys import Caller, Scope
from models.tenants.tenant_limits import NoKeys
from processes.cpu_turns import current_turn
from protocol.client_errors import InvalidKey, MissingScope, RateLimited
from webapp.context.app_context import current_context
from webapp.limits.backlog_limits import TokenStanding
from webapp.limits.rate_limits import add_limit_headers
from webapp.waiting.patience import WAITING_CALLS

# Characters of a refused key that an error shows: for a key with our prefix, and for any other.
OUR_CHARACTERS, FOREIGN_CHARACTERS = api_keys.READABLE_CHARACTERS, 3

NEED_A_KEY = ("/v1/", "/tokenize", "/detokenize")  # prefixes of the addresses that need a key

# POST calls that do not hold their tenant's turn from start to end: those that wait have turns of another kind, many
# submissions are stored by one statement, and an upload lasts as long as its client sends.
OTHER_TURNS = (*WAITING_CALLS, "/v1/responses", "/v1/files")

log = structlog.get_logger()

# As in the OpenAPI document: method and path -> scope. tests/integration/api/test_api_scopes.py compares both.
ROUTE_SCOPES: dict[tuple[str, str], Scope] = {
    ("POST", "/v1/responses"): Scope.submit,
    ("GET", "/v1/responses"): Scope.read,
    ("GET", "/v1/responses/{id}"): Scope.read,
    ("POST", "/v1/responses/{id}/cancel"): Scope.submit,
    ("DELETE", "/v1/responses/{id}"): Scope.submit,
    ("GET", "/v1/responses/{id}/input_items"): Scope.read,
    ("GET", "/v1/responses/{id}/why"): Scope.read,
    ("POST", "/v1/responses/input_tokens"): Scope.read,
    ("GET", "/v1/chat/completions"): Scope.read,
    ("POST", "/v1/chat/completions"): Scope.submit,
    ("GET", "/v1/chat/completions/{id}"): Scope.read,
    ("POST", "/v1/completions"): Scope.submit,
    ("POST", "/v1/messages"): Scope.submit,
    ("GET", "/v1/messages/{id}"): Scope.read,
    ("POST", "/v1/messages/count_tokens"): Scope.read,
    ("POST", "/v1/embeddings"): Scope.submit,
    ("POST", "/v1/rerank"): Scope.submit,
    ("POST", "/v1/score"): Scope.submit,
    ("POST", "/v1/files"): Scope.submit,
    ("GET", "/v1/files"): Scope.read,
    ("GET", "/v1/files/{id}"): Scope.read,
    ("GET", "/v1/files/{id}/content"): Scope.read,
    ("DELETE", "/v1/files/{id}"): Scope.submit,
    ("POST", "/v1/batches"): Scope.submit,
    ("GET", "/v1/batches"): Scope.read,
    ("GET", "/v1/batches/{id}"): Scope.read,
    ("POST", "/v1/batches/{id}"): Scope.submit,
    ("POST", "/v1/batches/{id}/cancel"): Scope.submit,
    ("POST", "/v1/batches/{id}/pause"): Scope.submit,
    ("POST", "/v1/batches/{id}/resume"): Scope.submit,
    ("POST", "/v1/batches/{id}/retry"): Scope.submit,
    ("GET", "/v1/batches/{id}/results"): Scope.read,
    ("POST", "/tokenize"): Scope.read,
    ("POST", "/detokenize"): Scope.read,
    ("GET", "/v1/models"): Scope.read,
    ("GET", "/v1/models/{name}"): Scope.read,
    ("GET", "/v1/magnus/stats"): Scope.read,
    ("GET", "/v1/magnus/usage"): Scope.read,
    ("POST", "/v1/magnus/quotes"): Scope.read,
    ("GET", "/v1/magnus/promises"): Scope.read,
    ("POST", "/v1/magnus/webhooks"): Scope.submit,
    ("GET", "/v1/magnus/webhooks"): Scope.read,
    ("POST", "/v1/magnus/webhooks/{id}/rotate"): Scope.submit,
    ("DELETE", "/v1/magnus/webhooks/{id}"): Scope.submit,
    ("GET", "/v1/magnus/webhooks/{id}/deliveries"): Scope.read,
    ("POST", "/v1/magnus/webhooks/{id}/deliveries/{delivery}/redeliver"): Scope.submit,
}
PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")  # a parameter in a Flask rule; OpenAPI writes it in braces


def require_api_key() -> None:
    """Finds the tenant of a request's key, counts the request against the tenant's rate and checks the route's scope.

    Runs before each request. Raises InvalidKey, RateLimited, MissingScope.
    """
    if not request.path.startswith(NEED_A_KEY) or _is_public():
        return
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    for name in ("api-key", "x-api-key"):  # as Azure's and Anthropic's clients send it
        if not scheme and name in request.headers:
            scheme, key = "bearer", request.headers[name]
    if scheme.lower() != "bearer" or not key.strip():
        raise InvalidKey("You did not provide an API key: send 'Authorization: Bearer <key>'.")
    context = current_context()
    caller = context.callers.get(api_keys.digest(key.strip()), time.monotonic())
    if caller is None:
        raise _incorrect(key)
    g.caller = caller
    context.backlog_limit.set_limits(caller.tenant, caller.limits)
    try:
        g.rate_standing = context.rate_limit.count(caller.tenant, time.monotonic(), caller.limits.requests_per_minute)
    except RateLimited as error:
        g.rate_standing = error.standing
        raise
    except NoKeys:  # its tenant was removed since the key was read
        raise _incorrect(key) from None
    if request.url_rule is not None and request.method != "OPTIONS":
        require_scope(caller, scope_of(request.method, request.url_rule.rule))


def _incorrect(key: str) -> InvalidKey:
    return InvalidKey(f"Incorrect API key provided: {masked(key.strip())}. It is unknown, expired or revoked.")


def _is_public() -> bool:
    """Returns whether this call, without a key, is for the promise book of a service that shows it to everybody."""
    keys = ("Authorization", "api-key", "x-api-key")
    asks = request.path.rstrip("/") == "/v1/magnus/promises" and not any(name in request.headers for name in keys)
    return asks and current_context().quotes.public


def take_turn_of_tenant() -> None:
    """Reads a call's body, then begins its turn among its tenant's calls, so that its many calls delay no other."""
    if "caller" in g and not (request.method == "POST" and request.path.rstrip("/") in OTHER_TURNS):
        request.get_data()
        current_turn().begin(current_context().tenant_turns[current_tenant()])


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raises MissingScope unless the caller's key has this scope."""
    if scope not in caller.scopes:
        raise MissingScope(
            f"You have insufficient permissions for this operation. Missing scopes: {scope}. This key has "
            f"{', '.join(sorted(caller.scopes)) or 'none'}; `magnus keys create --scopes` makes others."
        )


def add_tenant_headers(response: Response) -> Response:
    """Adds headers with the tenant's remaining limits to each answer under /v1."""
    if "rate_standing" in g:
        add_limit_headers(response, g.rate_standing, _token_standing() if request.method == "POST" else None)
    return response


def _token_standing() -> TokenStanding | None:
    """Returns what the tenant may still submit; returns None, without an error, if the database is unreachable."""
    try:
        return current_context().backlog_limit.standing(current_tenant())
    except SQLAlchemyError as error:
        log.warning("limit_not_told", error=error)
        return None


def masked(key: str) -> str:
    """Returns the first characters of a refused key, fewer if it may be a key of another service."""
    return key[: OUR_CHARACTERS if key.startswith(api_keys.PREFIX) else FOREIGN_CHARACTERS] + "****"


def current_tenant() -> str:
    """Returns the tenant whose key the current request carries; the request sees only this tenant's data."""
    return current_caller().tenant


def current_caller() -> Caller:
    """Returns the caller whose key the current request carries."""
    caller: Caller = g.caller
    return caller


@cache
def scope_of(method: str, rule: str) -> Scope:
    """Returns the scope that a call of this method needs on the route with this Flask rule."""
    path = PARAMETER.sub(r"{\1}", rule)
    return ROUTE_SCOPES.get(("GET" if method == "HEAD" else method, path), Scope.operate)
