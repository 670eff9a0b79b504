"""Lets pages of the origins in MAGNUS_CORS_ORIGINS use the API from a browser.

A page sends its key in a header, never in a cookie, so that no answer depends on who is logged in to the browser.
"""

from collections.abc import Collection
from functools import partial

from flask import Flask, Response, request

from webapp.context.auth import NEED_A_KEY

PREFLIGHT_FOR_S = 600  # seconds for which browsers cache a preflight's answer; not tuned
ALLOWED = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Content-Encoding, Idempotency-Key, Prefer, "
    "OpenAI-Organization, OpenAI-Project, OpenAI-Beta, X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, "
    "X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version, "
    "X-Stainless-Timeout, X-Stainless-Helper-Method, X-Api-Key, Anthropic-Version, Anthropic-Beta, "
    "Anthropic-Dangerous-Direct-Browser-Access",
    "Access-Control-Max-Age": str(PREFLIGHT_FOR_S),
}
SHOWN = "Retry-After, x-request-id, request-id, Preference-Applied"  # the headers of an answer that scripts may read


def register(app: Flask, origins: Collection[str]) -> None:
    """Answers preflights, which carry no key, and lets pages of these origins, "*" for all, read the API's answers."""
    if origins:
        app.before_request(partial(_answer_preflight, origins))
        app.after_request(partial(_allow_origin, origins))


def _allowed_origin(origins: Collection[str]) -> str | None:
    origin = request.headers.get("Origin")
    if origin is None or not request.path.startswith(NEED_A_KEY):
        return None
    return "*" if "*" in origins else origin if origin in origins else None


def _answer_preflight(origins: Collection[str]) -> Response | None:
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    return Response(status=204, headers=ALLOWED) if asks and _allowed_origin(origins) else None


def _allow_origin(origins: Collection[str], answer: Response) -> Response:
    if request.path.startswith(NEED_A_KEY):
        answer.headers["Vary"] = "Origin"
    allowed = _allowed_origin(origins)
    if allowed is not None:
        answer.headers["Access-Control-Allow-Origin"] = allowed
        answer.headers["Access-Control-Expose-Headers"] = SHOWN
        answer.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return answer
