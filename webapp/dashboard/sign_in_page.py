"""The page to sign in on, and signing out."""

from urllib.parse import urlsplit

from apiflask import APIBlueprint
from flask import make_response, redirect, render_template, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from webapp.dashboard.operator_sign_in import COOKIE, SESSION_S, begin_session, end_session, require_own_site

pages = APIBlueprint("sign_in", __name__, enable_openapi=False)


@pages.get("/sign-in")
def form() -> str:
    """The form; `next` is where to go then."""
    return render_template("sign_in.html", next=own_path(request.args.get("next", "/")), refused=False)


@pages.post("/sign-in")
def sign_in() -> BaseResponse:
    """Begin a session; the cookie is sent to no script and with no form of another site."""
    require_own_site()
    after = own_path(request.form.get("next", "/"))
    cookie = begin_session(request.form.get("secret", "").strip())
    if cookie is None:
        return make_response(render_template("sign_in.html", next=after, refused=True), 401)
    answer = redirect(after, 303)
    secure = request.is_secure or request.headers.get("X-Forwarded-Proto") == "https"  # behind a proxy that ends TLS
    answer.set_cookie(COOKIE, cookie, max_age=SESSION_S, httponly=True, secure=secure, samesite="Lax")
    return answer


def sign_out() -> BaseResponse:
    """End the session."""
    end_session()
    answer = redirect(url_for("sign_in.form"), 303)
    answer.delete_cookie(COOKIE)
    return answer


def own_path(address: str) -> str:
    """The address if it is a path of this site, else the overview: nobody is sent elsewhere by a link to us."""
    parts = urlsplit(address)
    own = not parts.scheme and not parts.netloc and address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if own else "/"
