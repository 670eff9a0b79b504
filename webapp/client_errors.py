"""The errors that a client can get, as OpenAI's `error` and an RFC 9457 problem, with their status codes."""

from collections.abc import Sequence
from http import HTTPStatus

import structlog
from apiflask import APIFlask
from apiflask.exceptions import HTTPError
from flask import Response, current_app
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.exc import InternalError, NotSupportedError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection
from werkzeug.exceptions import HTTPException

from inference.engine_errors import TokenizerAway
from models.client_requests import StillInProgress
from models.connections.database_errors import UNFIT
from models.new_requests import IdempotencyKeyReused
from webapp.transport.one_line_json import one_line_json

log = structlog.get_logger()


class ClientError(Exception):
    """An error that the client must handle; `param` names the field, `code` is for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.message, self.param, self.code = message, param, code
        super().__init__(message)


class InvalidRequest(ClientError):
    """A body, a parameter or a header that this service cannot accept."""


class InvalidKey(ClientError):
    """No API key, an unknown one, an expired or a revoked one."""


class MissingScope(ClientError):
    """The key is valid, but lacks the scope that this call needs."""


class NotFound(ClientError):
    """The key's tenant has nothing with that name or id; what another tenant has is not found either."""


class RateLimited(ClientError):
    """The tenant has sent all requests that its window allows; `standing` is the state of that window."""

    def __init__(self, rate: str, retry_after_s: int, standing: object = None) -> None:
        self.standing = standing
        self.retry_after_s = retry_after_s
        super().__init__(f"Rate limit of {rate} reached for requests. Try again in {retry_after_s} s.")


class BacklogFull(ClientError):
    """The tenant has as many requests, or tokens, in the queue as it may have; it can try again in `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class TooManyWaiting(ClientError):
    """The tenant has as many waiting calls as it may have; it can submit in the background instead."""


class Busy(ClientError):
    """This process has as many waiting calls as it may have, or it is stopping; submit in the background instead."""


class Unserved(ClientError):
    """For a long time no worker has served the model, while requests wait; the client can try again later."""


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


# Type of the error -> status, OpenAI's error type, code unless the error has its own, Retry-After in seconds.
# 1 s is the shortest that the header can say; 2 s leaves a restarting database more time. Not tuned.
ERROR_TABLE: dict[type[Exception], tuple[int, str, str | None, int | None]] = {
    InvalidRequest: (400, "invalid_request_error", "invalid_request", None),
    InvalidKey: (401, "invalid_request_error", "invalid_api_key", None),
    MissingScope: (403, "invalid_request_error", "missing_scope", None),
    NotFound: (404, "invalid_request_error", "not_found", None),
    StillInProgress: (409, "invalid_request_error", "response_in_progress", 1),
    IdempotencyKeyReused: (422, "invalid_request_error", "idempotency_key_reused", None),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded", None),  # these two have their own `retry_after_s`
    BacklogFull: (429, "rate_limit_error", "backlog_full", None),
    TooManyWaiting: (429, "rate_limit_error", "too_many_waiting", 1),
    NotAnswered: (502, "server_error", "server_error", None),
    Busy: (503, "server_error", "too_many_waiting", 1),
    Unserved: (503, "server_error", "model_unserved", 60),  # a worker needs about that long to load a model
    NotInTime: (504, "server_error", "timeout", 1),
    TokenizerAway: (503, "server_error", "tokenizer_unavailable", 2),
    OperationalError: (503, "server_error", "database_unavailable", 2),  # no answer, or the statement timeout
    NoConnection: (503, "server_error", "database_unavailable", 2),
    InternalError: (503, "server_error", "database_unavailable", 2),  # a server that takes no writes, or is damaged
    NotSupportedError: (503, "server_error", "database_unavailable", 60),  # an operator must replace the database
    ProgrammingError: (503, "server_error", "database_unavailable", 60),  # tables or rights do not fit
}

# Replace the errors' own messages, which would show SQL or addresses.
MESSAGES: dict[type[Exception], str] = {
    TokenizerAway: "Prompts cannot be counted and checked at the moment. Try again shortly.",
    OperationalError: "The database does not answer at the moment. Try again shortly.",
    NoConnection: "The database does not answer at the moment. Try again shortly.",
    InternalError: "The database takes no writes at the moment, or is damaged: /readyz says why. Try again shortly.",
    NotSupportedError: "The database cannot be used at the moment. Try again shortly.",
    ProgrammingError: "The database's tables or rights do not fit: its operator must run `magnus migrate`.",
}

HTTP_MESSAGES = {
    404: "There is nothing at this address.",
    405: "This address does not know that method.",
    408: "The body of this request did not arrive in time.",
    413: "The request body is larger than this service reads.",
    500: "The service made a mistake. It is logged; trying again may help.",
}


def register(app: APIFlask) -> None:
    """Answers every error of this app with a body of the same shape."""
    for kind in ERROR_TABLE:
        app.register_error_handler(kind, answer_known_error)
    app.register_error_handler(HTTPError, answer_validation_error)
    app.register_error_handler(HTTPException, answer_http_error)


def error_object(error: ClientError) -> ErrorObject:
    """Returns OpenAI's error object for a stream's event or a line of a batch."""
    _, type_, code, _ = ERROR_TABLE[type(error)]
    return ErrorObject(message=error.message, type=type_, param=error.param, code=error.code or code)


def answer_known_error(error: Exception) -> Response:
    """Answers an error of the table."""
    if isinstance(error, ProgrammingError) and not isinstance(error.orig, UNFIT):
        raise error  # a mistake in our own statement
    kind = next(kind for kind in ERROR_TABLE if isinstance(error, kind))
    status, type_, code, retry_after_s = ERROR_TABLE[kind]
    if status >= 500:
        log.warning("not_served", status=status, code=code, error=error)
    if isinstance(error, RateLimited | BacklogFull):
        retry_after_s = error.retry_after_s
    if isinstance(error, ClientError):
        return error_response(status, error.message, type_, error.param, error.code or code, retry_after_s)
    return error_response(status, MESSAGES.get(kind) or f"{error}", type_, None, code, retry_after_s)


def answer_validation_error(error: HTTPError) -> Response:
    """Answers APIFlask's error; if Pydantic's ValidationError caused it, with the field that its first entry names."""
    if not isinstance(error.__cause__, ValidationError):
        return error_response(error.status_code, f"{error.message}.", "invalid_request_error", None, None)
    first = error.__cause__.errors(include_url=False)[0]
    param = field_path(first["loc"])
    return error_response(400, validation_message(first, param), "invalid_request_error", param, first["type"])


def answer_http_error(error: HTTPException) -> Response:
    """Answers Werkzeug's error: no such page, wrong method, body too large, and 500 for an unexpected exception."""
    status = error.code or 500
    type_ = "server_error" if status >= 500 else "invalid_request_error"
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    answer = error_response(status, HTTP_MESSAGES.get(status) or error.description or error.name, type_, None, code)
    for name, value in error.get_headers():
        if name == "Allow":
            answer.headers[name] = value
    return answer


def error_response(
    status: int, message: str, type_: str, param: str | None, code: str | None, retry_after_s: int | None = None
) -> Response:
    """Returns the answer to an error, with OpenAI's error object and the RFC 9457 problem in its body."""
    body = Problem(
        error=ErrorObject(message=message, type=type_, param=param, code=code),
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=message,
    )
    answer = current_app.response_class(one_line_json(body), status, content_type="application/problem+json")
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def field_path(location: Sequence[str | int]) -> str | None:
    """Returns a field's path in the body, such as input[0].content, without Pydantic's marks for unions and keys."""
    param = ""
    for step in location:
        if isinstance(step, int):
            param += f"[{step}]"
        elif not step.startswith("<") and step != "[key]":
            param += f".{step[:64]}" if param else step[:64]
    return param or None


def validation_message(error: ErrorDetails, param: str | None) -> str:
    """Returns Pydantic's error as a sentence that names the field."""
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
