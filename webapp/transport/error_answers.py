"""Answers errors with OpenAI's `error` and an RFC 9457 problem in one body, or as Anthropic does; with status codes."""

from http import HTTPStatus

import structlog
from apiflask import APIFlask
from apiflask.exceptions import HTTPError
from flask import Response, current_app, g, request
from pydantic import ValidationError
from sqlalchemy.exc import InternalError, NotSupportedError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as NoConnection
from werkzeug.exceptions import HTTPException

from inference.engine_errors import TokenizerAway
from models.client_requests import StillInProgress
from models.connections.database_errors import is_unfit, why_nothing_is_stored
from models.new_requests import IdempotencyKeyReused
from protocol.client_errors import (
    CLIENT_ERRORS,
    ClientError,
    ErrorKind,
    ErrorObject,
    NotInTime,
    Problem,
    error_object,
    field_path,
    validation_message,
)
from protocol.json_bytes import one_line_json
from protocol.messages.message_objects import MessageError

log = structlog.get_logger()

# Errors of clients, and of what the service needs; Retry-After 2 s leaves a restarting database time. Not tuned.
ERROR_TABLE: dict[type[Exception], ErrorKind] = {
    **CLIENT_ERRORS,
    StillInProgress: (409, "invalid_request_error", "response_in_progress", 1),
    IdempotencyKeyReused: (422, "invalid_request_error", "idempotency_key_reused", None),
    TokenizerAway: (503, "server_error", "tokenizer_unavailable", 2),
    OperationalError: (503, "server_error", "database_unavailable", 2),  # no answer, or the statement timeout
    NoConnection: (503, "server_error", "database_unavailable", 2),
    InternalError: (503, "server_error", "database_unavailable", 2),  # a server that takes no writes, or is damaged
    NotSupportedError: (503, "server_error", "database_unavailable", 60),  # an operator must replace the database
    ProgrammingError: (503, "server_error", "database_unavailable", 60),  # tables or rights do not fit
}

# The messages that replace the errors' own messages, which would show SQL or addresses.
MESSAGES: dict[type[Exception], str] = {
    TokenizerAway: "Prompts cannot be counted and checked at the moment. Try again shortly.",
    OperationalError: "The database does not answer at the moment. Try again shortly.",
    NoConnection: "The database does not answer at the moment. Try again shortly.",
    InternalError: "The database cannot work at the moment, or is damaged: /readyz says why. Try again shortly.",
    NotSupportedError: "The database cannot be used at the moment. Try again shortly.",
    ProgrammingError: "The database's tables or rights do not fit: its operator must run `magnus migrate`, or do what "
    "/readyz says.",
}

HTTP_MESSAGES = {
    404: "There is nothing at this address.",
    405: "This address does not know that method.",
    408: "The body of this request did not arrive in time.",
    413: "The request body is larger than this service reads.",
    500: "The service made a mistake. It is logged; trying again may help.",
}

# What is served in the place of addresses that clients of other services know.
INSTEAD = {
    "/v1/webhook_endpoints": "Endpoints of webhooks are at /v1/magnus/webhooks.",
    "/v1/responses/compact": "Conversations are not compacted here: `truncation: auto` leaves out their oldest turns.",
    "/v1/messages/batches": "Bulk jobs are at /v1/batches, whose lines have the urls of OpenAI's API.",
    "/v1/embed": "Vectors are at /v1/embeddings, in OpenAI's form.",
    "/v2/embed": "Vectors are at /v1/embeddings, in OpenAI's form.",
}


def register(app: APIFlask) -> None:
    """Answers every error of this app with a body of the same shape."""
    for kind in ERROR_TABLE:
        app.register_error_handler(kind, answer_known_error)
    app.register_error_handler(HTTPError, answer_validation_error)
    app.register_error_handler(HTTPException, answer_http_error)


def answer_known_error(error: Exception) -> Response:
    """Answers an error of the table."""
    if isinstance(error, ProgrammingError) and not is_unfit(error):
        raise error  # a mistake in our own statement
    kind = next(kind for kind in ERROR_TABLE if isinstance(error, kind))
    status, type_, code, retry_after_s = ERROR_TABLE[kind]
    if status >= 500:
        log.warning("not_served", status=status, code=code, error=error)
    if isinstance(error, ClientError):
        answer = answer_of(status, error_object(error), error.retry_after_s or retry_after_s)
        if isinstance(error, NotInTime) and "Idempotency-Key" not in request.headers:
            answer.headers["x-should-retry"] = "false"  # OpenAI's clients would repeat the call twice
        return answer
    told = why_nothing_is_stored(error)
    message = f"{told}. Try again shortly." if told else MESSAGES.get(kind) or f"{error}"
    return error_response(status, message, type_, None, code, retry_after_s)


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
    instead = next((INSTEAD[path] for path in INSTEAD if f"{request.path}/".startswith(f"{path}/")), None)
    if instead is not None and status in (404, 405):
        return error_response(404, f"{HTTP_MESSAGES[404]} {instead}", "invalid_request_error", None, "not_found")
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
    """Returns the answer to an error that is none of a client's."""
    return answer_of(status, ErrorObject(message=message, type=type_, param=param, code=code), retry_after_s)


def answer_of(status: int, error: ErrorObject, retry_after_s: int | None) -> Response:
    """Returns the answer to an error: to Anthropic's clients in its form, to others as OpenAI's error and a problem."""
    body: MessageError | Problem
    if speaks_anthropic():
        body, content_type = MessageError.of(status, error, g.request_name), "application/json"
    else:
        title = HTTPStatus(status).phrase
        body = Problem(error=error, type="about:blank", title=title, status=status, detail=error.message)
        content_type = "application/problem+json"
    answer = current_app.response_class(one_line_json(body), status, content_type=content_type)
    if status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if retry_after_s is not None:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def speaks_anthropic() -> bool:
    """Tells whether this call is one of Anthropic's API, whose answers have its errors and the header request-id."""
    asks_for_models = request.path.startswith("/v1/models") and "anthropic-version" in request.headers
    return asks_for_models or request.path.startswith("/v1/messages")
