"""Begins and ends operators' sessions, and identifies who sent a call: by its session, a trusted proxy or the password.

The scope `operate` shows pages, `submit` beside it allows actions, and `read` shows texts. A call with the password
itself (HTTP Basic, for scripts) may see pages but not act, because a browser also sends the password with requests that
other sites make. A proxy adds its header to such requests, too, so a form must have a token that only our pages know.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from flask import Response, abort, g, redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from models.operations import operator_access
from models.tenants import api_keys
from models.tenants.api_keys import Scope
from settings import DASHBOARD_USER
from webapp.context.app_context import current_context
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.people import Person

COOKIE = "magnus_session"
SESSION_S = 12 * 3600  # a working day; not tuned
SHARED_ACCESS = "the dashboard's password"  # the audit shows this as the operator's name
FOR_EVERYBODY = ("dashboard.sign_out", "dashboard.job_texts")  # forms that change nothing in the service
LIVE = "X-Magnus-Live"  # header of the script that refreshes pages; it gets no sign-in page


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator who is signed in; `form_token` must come with the operator's forms, None: no form is accepted."""

    name: str
    scopes: frozenset[str]
    form_token: str | None
    signs_out: bool = True  # False if the operator signs out at a proxy

    @property
    def may_act(self) -> bool:
        """Whether the operator may take actions."""
        return Scope.submit in self.scopes and self.form_token is not None

    @property
    def may_read_texts(self) -> bool:
        """Whether the operator may see prompts and answers."""
        return Scope.read in self.scopes and self.form_token is not None


def current_operator() -> Operator:
    """Returns the operator who sent the current request."""
    operator: Operator = g.operator
    return operator


def require_operator() -> BaseResponse | None:
    """Runs before each page: asks for a sign-in, and admits forms only from this site and with the right to act."""
    operator = _of_session(request.cookies.get(COOKIE, "")) or _of_proxy() or _of_password()
    if operator is None:
        public = request.endpoint == "dashboard.promises" and current_context().quotes.public
        return None if public else _ask_to_sign_in()
    g.operator = operator
    if request.method not in ("GET", "HEAD"):
        require_own_form(operator.form_token)
        if request.endpoint not in FOR_EVERYBODY and not operator.may_act:
            abort(403, "Actions need the scopes `operate` and `submit`, of your key or of your groups.")
    return None


def require_own_form(token: str | None) -> None:
    """Answers 403 unless a page of this site sent the form, with this session's token."""
    require_own_site()
    if token is None or not hmac.compare_digest(request.form.get("token", "").encode(), token.encode()):
        abort(403, "This form belongs to another session: load the page again.")


def require_own_site() -> None:
    """Answers 403 if the browser says that another site sent the form."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        abort(403, "This form was sent by another site.")


def begin_session(secret: str) -> str | None:
    """Begins a session by an API key with the scope `operate` or by the password; returns its cookie or None."""
    context, cookie = current_context(), secrets.token_urlsafe(32)
    with context.sessions() as session:
        if _is_password(secret):
            operator_access.begin_session(session, _digest(cookie), SESSION_S, password_sha256=_digest(secret))
            return cookie
        caller = api_keys.find(session.connection(), secret)
        if caller is None or Scope.operate not in caller.scopes:
            return None
        operator_access.begin_session(session, _digest(cookie), SESSION_S, key_id=caller.key_id)
        return cookie


def begin_session_of(person: Person, issuer: str) -> str | None:
    """Begins a session of somebody of this provider; returns its cookie, or None without the scope `operate`."""
    context, cookie = current_context(), secrets.token_urlsafe(32)
    if Scope.operate not in current_dashboard().company.scopes_of(person.groups):
        return None
    groups = [group for group in person.groups if group in current_dashboard().company.roles]
    with context.sessions() as session:
        operator_access.begin_session(
            session, _digest(cookie), SESSION_S, person=person.name, issuer=issuer, person_groups=groups
        )
    return cookie


def person_of_proxy() -> Person | None:
    """Returns the person whom a trusted proxy names in the current call."""
    proxy = current_dashboard().company.proxy
    return None if proxy is None else proxy.person(request.remote_addr, request.headers)


def end_session() -> None:
    """Deletes the session of the current request."""
    with current_context().sessions() as session:
        operator_access.end_session(session, _digest(request.cookies.get(COOKIE, "")))


def _of_session(cookie: str) -> Operator | None:
    if not cookie:
        return None
    context = current_context()
    with context.sessions() as session:
        found = operator_access.find_session(session, _digest(cookie))
    if found is None:
        return None
    if found.password_sha256 is not None:
        password = current_dashboard().password
        if password is None or not hmac.compare_digest(found.password_sha256, _digest(password)):
            return None
        name, scopes = SHARED_ACCESS, frozenset(map(str, Scope))
    elif found.person is not None:
        company = current_dashboard().company
        if company.provider is None or company.provider.issuer != found.issuer:
            return None
        name, scopes = found.person, company.scopes_of(found.person_groups or ())
    else:
        name, scopes = f"{found.prefix}… ({found.name}, tenant {found.tenant})", frozenset(found.scopes or ())
    if Scope.operate not in scopes:
        return None
    return Operator(name, scopes, hmac.new(cookie.encode(), b"form", "sha256").hexdigest())


def _of_proxy() -> Operator | None:
    person, context = person_of_proxy(), current_context()
    scopes = frozenset() if person is None else current_dashboard().company.scopes_of(person.groups)
    if person is None or Scope.operate not in scopes:
        return None
    secret = context.token_feed.installation().secret
    token = hmac.new(secret.encode(), f"form of {person.name}".encode(), "sha256").hexdigest()
    return Operator(person.name, scopes, token, signs_out=False)


def _of_password() -> Operator | None:
    given = request.authorization
    if (
        given is None
        or given.type != "basic"
        or not hmac.compare_digest((given.username or "").encode(), DASHBOARD_USER.encode())
        or not _is_password(given.password or "")
    ):
        return None
    return Operator(SHARED_ACCESS, frozenset(Scope), None)


def _is_password(secret: str) -> bool:
    password = current_dashboard().password
    return password is not None and hmac.compare_digest(secret.encode(), password.encode())


def _ask_to_sign_in() -> BaseResponse:
    """Redirects a browser to the sign-in page; answers 401 to all others."""
    reads_pages = request.accept_mimetypes.best_match(["text/plain", "text/html"]) == "text/html"
    if request.method == "GET" and reads_pages and LIVE not in request.headers:
        return redirect(url_for("sign_in.form", next=request.full_path.rstrip("?")), 303)
    return Response(
        "Sign in with an API key that has the scope 'operate', or as 'magnus' with the dashboard's password.\n",
        401,
        {} if LIVE in request.headers else {"WWW-Authenticate": 'Basic realm="Magnus", charset="UTF-8"'},
        mimetype="text/plain",
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
