"""The sign-in page and the ways that lead from it: a key or the password, the OpenID provider and back; signing out."""

import hmac
from dataclasses import astuple
from urllib.parse import quote, unquote, urlsplit

import structlog
from apiflask import APIBlueprint
from flask import Response, abort, make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from models.tenants.api_keys import Scope
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_sign_in import (
    COOKIE,
    SESSION_S,
    begin_session,
    begin_session_of,
    end_session,
    person_of_proxy,
    require_own_site,
)
from webapp.dashboard.people import ProviderAway, SignInAttempt, SignInRefused, printable

ATTEMPT_COOKIE = "magnus_sign_in"  # holds what finishes a sign-in at the provider, and the page to show then
ATTEMPT_S = 600  # longest time for a sign-in at the provider; not tuned
ATTEMPT_PATH = "/sign-in"
LONGEST_PATH = 2000  # most characters of that page's address, because a cookie has at most 4,096; not tuned

log = structlog.get_logger()
sign_in_pages = APIBlueprint("sign_in", __name__, enable_openapi=False)


@sign_in_pages.get("/sign-in")
def form() -> Response:
    """Shows the ways of signing in; `next` is the address to which signing in leads."""
    person, company = person_of_proxy(), current_dashboard().company
    after = own_path(request.args.get("next", "/"))
    if person is not None and Scope.operate not in company.scopes_of(person.groups):
        return _page(after, company.refusal(person), 403)
    return _page(after)


@sign_in_pages.post("/sign-in")
def sign_in() -> BaseResponse:
    """Begins a session; its cookie is hidden from scripts and not sent with forms of other sites."""
    require_own_site()
    after = own_path(request.form.get("next", "/"))
    cookie = begin_session(request.form.get("secret", "").strip())
    if cookie is None:
        return _page(after, "This is neither the password nor a key with the scope operate.", 401)
    answer = redirect(after, 303)
    _set_cookie(answer, COOKIE, cookie, SESSION_S)
    return answer


@sign_in_pages.get("/sign-in/provider")
def go_to_provider() -> BaseResponse:
    """Begins a sign-in at the provider."""
    provider, after = current_dashboard().company.provider or abort(404), own_path(request.args.get("next", "/"))
    try:
        address, attempt = provider.begin()
    except ProviderAway as error:
        log.warning("sign-in failed", reason=str(error))
        return _page(after, str(error), 503)
    answer = redirect(address, 303)
    path = quote(after)
    kept = ".".join((*astuple(attempt), path if len(path) < LONGEST_PATH else "/"))
    _set_cookie(answer, ATTEMPT_COOKIE, kept, ATTEMPT_S, ATTEMPT_PATH)
    return answer


@sign_in_pages.get("/sign-in/callback")
def come_back() -> BaseResponse:
    """Ends a sign-in at the provider; a session begins if this browser began it and the person may see pages."""
    kept = request.cookies.get(ATTEMPT_COOKIE, "").split(".", 3)
    *attempt, after = kept if len(kept) == 4 else ("", "", "", "")
    answer = _signed_in(SignInAttempt(*attempt), own_path(unquote(after)))
    answer.delete_cookie(ATTEMPT_COOKIE, path=ATTEMPT_PATH)
    return answer


def _signed_in(attempt: SignInAttempt, after: str) -> BaseResponse:
    company, code = current_dashboard().company, request.args.get("code")
    provider = company.provider or abort(404)
    if not attempt.state or not hmac.compare_digest(attempt.state.encode(), request.args.get("state", "").encode()):
        return _page(after, "This sign-in did not begin in this browser, or too long ago: try again.", 400)
    if code is None:
        reason = printable(request.args.get("error", "no reason given"))
        return _page(after, f"{provider.name} did not sign you in: {reason}.", 401)
    try:
        person = provider.finish(code, attempt)
    except (ProviderAway, SignInRefused) as error:
        log.warning("sign-in failed", reason=str(error))
        return _page(after, str(error), 503 if isinstance(error, ProviderAway) else 401)
    cookie = begin_session_of(person, provider.issuer)
    if cookie is None:
        return _page(after, company.refusal(person), 403)
    answer = redirect(after, 303)
    _set_cookie(answer, COOKIE, cookie, SESSION_S)
    return answer


def sign_out() -> BaseResponse:
    """Ends the session."""
    end_session()
    answer = redirect(url_for("sign_in.form"), 303)
    answer.delete_cookie(COOKIE)
    return answer


def own_path(address: str) -> str:
    """Returns the address if it is a path of this site, else the overview's, so that no link leads to another site."""
    try:
        parts = urlsplit(address)
    except ValueError:  # brackets in the address hold no IPv6 address
        return "/"
    own = not parts.scheme and not parts.netloc and address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if own and address.isprintable() else "/"


def _page(after: str, refused: str | None = None, status: int = 200) -> Response:
    company = current_dashboard().company
    page = render_template("sign_in.html", next=after, refused=refused, provider=company.provider)
    return make_response(page, status)


def _set_cookie(answer: BaseResponse, name: str, value: str, max_age: int, path: str = "/") -> None:
    secure = request.is_secure or request.headers.get("X-Forwarded-Proto") == "https"  # behind a proxy that ends TLS
    answer.set_cookie(name, value, max_age=max_age, path=path, httponly=True, secure=secure, samesite="Lax")
