"""Which scope each route of the API needs; a route that is missing here needs `operate`, and a test fails."""

import re
from functools import cache

from models.tenants.api_keys import Scope

# As in the OpenAPI document: method and path -> scope. tests/integration/test_api_scopes.py compares both.
ROUTE_SCOPES: dict[tuple[str, str], Scope] = {
    ("POST", "/v1/responses"): Scope.submit,
    ("GET", "/v1/responses"): Scope.read,
    ("GET", "/v1/responses/{id}"): Scope.read,
    ("POST", "/v1/responses/{id}/cancel"): Scope.submit,
    ("DELETE", "/v1/responses/{id}"): Scope.submit,
    ("GET", "/v1/responses/{id}/input_items"): Scope.read,
    ("POST", "/v1/responses/input_tokens"): Scope.read,
    ("POST", "/v1/chat/completions"): Scope.submit,
    ("POST", "/v1/completions"): Scope.submit,
    ("POST", "/v1/files"): Scope.submit,
    ("GET", "/v1/files"): Scope.read,
    ("GET", "/v1/files/{id}"): Scope.read,
    ("GET", "/v1/files/{id}/content"): Scope.read,
    ("DELETE", "/v1/files/{id}"): Scope.submit,
    ("POST", "/v1/batches"): Scope.submit,
    ("GET", "/v1/batches"): Scope.read,
    ("GET", "/v1/batches/{id}"): Scope.read,
    ("POST", "/v1/batches/{id}/cancel"): Scope.submit,
    ("POST", "/tokenize"): Scope.read,
    ("POST", "/detokenize"): Scope.read,
    ("GET", "/v1/models"): Scope.read,
    ("GET", "/v1/models/{name}"): Scope.read,
    ("GET", "/v1/magnus/stats"): Scope.read,
    ("GET", "/v1/magnus/usage"): Scope.read,
    ("POST", "/v1/magnus/webhooks"): Scope.submit,
    ("GET", "/v1/magnus/webhooks"): Scope.read,
    ("POST", "/v1/magnus/webhooks/{id}/rotate"): Scope.submit,
    ("DELETE", "/v1/magnus/webhooks/{id}"): Scope.submit,
    ("GET", "/v1/magnus/webhooks/{id}/deliveries"): Scope.read,
    ("POST", "/v1/magnus/webhooks/{id}/deliveries/{delivery}/redeliver"): Scope.submit,
}
PARAMETER = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")  # Flask's; OpenAPI has braces


@cache
def scope_of(method: str, rule: str) -> Scope:
    """The scope that a call of this method needs on a route with this rule of Flask's."""
    path = PARAMETER.sub(r"{\1}", rule)
    return ROUTE_SCOPES.get(("GET" if method == "HEAD" else method, path), Scope.operate)
