"""What can go wrong for a client, and one table from the type of an error to its status code.

Every error body is OpenAI's `error` object and an RFC 9457 problem at once: existing clients and generic tools read it.
"""

from collections.abc import Sequence
from http import HTTPStatus

import structlog
from apiflask import APIFlask
from apiflask.exceptions import HTTPError
from flask import Response, current_app
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from werkzeug.exceptions import HTTPException

from models.client_requests import IdempotencyKeyReused, StillInProgress
from webapp.rate_limits import RateLimited

log = structlog.get_logger()


class ClientError(Exception):
    """Something that the client can correct; `param` names the field, `code` is for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message, self.param, self.code = message, param, code
        super().__init__(message)


class InvalidRequest(ClientError):
    """A body, a parameter or a header that does not mean anything here."""


class InvalidKey(ClientError):
    """No API key, an unknown one or a revoked one."""


class NotFound(ClientError):
    """No such thing for this key: other tenants' responses are not there either."""


class Busy(ClientError):
    """Too many connections wait for answers already; submit in the background instead."""


class NotInTime(ClientError):
    """A waiting call ended before its answer did; the request was cancelled."""


class ErrorObject(BaseModel):
    """OpenAI's error."""

    message: str
    type: str
    param: str | None
    code: str | None


class Problem(BaseModel):
    """The body of every error."""

    error: ErrorObject
    type: str
    title: str
    status: int
    detail: str


class NotAnswered(ClientError):
    """A waiting call's request failed; it can be tried again."""


# type of the error -> status, OpenAI's error type, code unless the error brings its own, seconds to wait before a retry
TABLE: dict[type[Exception], tuple[int, str, str | None, int | None]] = {
    InvalidRequest: (400, "invalid_request_error", "invalid_request", None),
    InvalidKey: (401, "invalid_request_error", "invalid_api_key", None),
    NotFound: (404, "invalid_request_error", "not_found", None),
    StillInProgress: (409, "invalid_request_error", "response_in_progress", 1),
    IdempotencyKeyReused: (422, "invalid_request_error", "idempotency_key_reused", None),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded", None),  # it says itself how long
    NotAnswered: (502, "server_error", "server_error", None),
    Busy: (503, "server_error", "too_many_waiting", 1),
    NotInTime: (504, "server_error", "timeout", 1),
    OperationalError: (503, "server_error", "database_unavailable", 2),  # away, or a statement ran out of time
    NoConnection: (503, "server_error", "database_unavailable", 2),
}

SAYS: dict[type[Exception], str] = {
    OperationalError: "The database does not answer at the moment. Try again shortly.",
    NoConnection: "The database does not answer at the moment. Try again shortly.",
}

HTTP_SAYS = {
    404: "There is nothing at this address.",
    405: "This address does not know that method.",
    413: "The request body is larger than this service reads.",
    500: "The service made a mistake. It is logged; trying again may help.",
}


def register(app: APIFlask) -> None:
    """Answer every error in the one shape."""
    for kind in TABLE:
        app.register_error_handler(kind, answer_known)
    app.register_error_handler(HTTPError, answer_invalid)
    app.register_error_handler(HTTPException, answer_http)


def answer_known(error: Exception) -> Response:
    """An error of the table."""
    kind = next(kind for kind in TABLE if isinstance(error, kind))
    status, type_, code, retry_after_s = TABLE[kind]
    if status >= 500:
        log.warning("not_served", status=status, error=str(error))
    if isinstance(error, ClientError):
        return problem(status, error.message, type_, error.param, error.code or code, retry_after_s)
    if isinstance(error, RateLimited):
        retry_after_s = error.retry_after_s
    return problem(status, SAYS.get(kind) or f"{error}", type_, None, code, retry_after_s)


def answer_invalid(error: HTTPError) -> Response:
    """APIFlask's error; behind a failed validation stands Pydantic's, whose first entry names the field."""
    if not isinstance(error.__cause__, ValidationError):
        return problem(error.status_code, f"{error.message}.", "invalid_request_error", None, None)
    first = error.__cause__.errors(include_url=False)[0]
    param = path(first["loc"])
    return problem(400, sentence(first, param), "invalid_request_error", param, first["type"])


def answer_http(error: HTTPException) -> Response:
    """Werkzeug's: no such page, wrong method, body too large; also what nobody expected, logged as a 500."""
    status = error.code or 500
    known = "server_error" if status >= 500 else "invalid_request_error"
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    answer = problem(status, HTTP_SAYS.get(status) or error.description or error.name, known, None, code)
    for name, value in error.get_headers():
        if name == "Allow":
            answer.headers[name] = value
    return answer


def problem(
    status: int, message: str, type_: str, param: str | None, code: str | None, retry_after_s: int | None = None
) -> Response:
    """The body of an error, in both shapes."""
    body = Problem(
        error=ErrorObject(message=message, type=type_, param=param, code=code),
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=message,
    )
    answer = current_app.response_class(body.model_dump_json(), status, content_type="application/problem+json")
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def path(location: Sequence[str | int]) -> str | None:
    """Where in the body: input[0].content; Pydantic's own marks (branches of a union, keys) are left out."""
    param = ""
    for step in location:
        if isinstance(step, int):
            param += f"[{step}]"
        elif not step.startswith("<") and step != "[key]":
            param += f".{step[:64]}" if param else step[:64]
    return param or None


def sentence(error: ErrorDetails, param: str | None) -> str:
    """Pydantic's message as a sentence that names the field."""
    if error["type"] == "extra_forbidden":
        return f"Unknown parameter: '{param}'."
    if error["type"] == "missing":
        return f"Missing required parameter: '{param}'."
    if error["type"] == "model_type" and param is None:
        return "The body must be a JSON object."
    if error["type"] == "none_required":
        return f"Unsupported parameter: '{param}'."
    message = error["msg"].removeprefix("Value error, ").removesuffix(".")
    return f"Invalid '{param}': {message}." if param else f"{message}."
