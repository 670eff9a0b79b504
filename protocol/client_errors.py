"""The errors that a client can get, with their status codes: OpenAI's `error`, and an RFC 9457 problem."""

from collections.abc import Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails


class ClientError(Exception):
    """An error that the client must handle; `param` names the field, `code` is for programs.

    `retry_after_s` is when to try again, where that depends on more than the kind of the error.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        self.message, self.param, self.code, self.retry_after_s = message, param, code, retry_after_s
        super().__init__(message)


class InvalidRequest(ClientError):
    """A body, a parameter or a header that this service cannot accept."""


class DeadlineInfeasible(ClientError):
    """An answer is unlikely to come within the request's deadline; `earliest_s` is the earliest that is likely kept."""

    def __init__(self, message: str, earliest_s: float) -> None:
        self.earliest_s = earliest_s
        super().__init__(message, param="magnus.deadline_s")


class QuoteUnusable(ClientError):
    """The quote is not one of this service for this tenant and this body, it is over, or it would not be kept now."""


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
        message = f"Rate limit of {rate} reached for requests. Try again in {retry_after_s} s."
        super().__init__(message, retry_after_s=retry_after_s)


class BacklogFull(ClientError):
    """The tenant has as many requests, or tokens, in the queue as it may have; it can try again in `retry_after_s`."""


class WorkRateReached(ClientError):
    """The tenant's requests take the most work a minute that they may; one of this length fits in `retry_after_s`."""


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


class DeadlineError(ErrorObject):
    """OpenAI's error with the earliest deadline, in seconds, that is likely kept."""

    earliest_deadline_s: float


class Problem(BaseModel):
    """The body of every error."""

    error: DeadlineError | ErrorObject
    type: str
    title: str
    status: int
    detail: str


class NotAnswered(ClientError):
    """A waiting call's request failed; it can be tried again."""


# the status, OpenAI's error type, the code unless the error has its own, Retry-After in seconds (1 s is the shortest)
ErrorKind = tuple[int, str, str | None, int | None]
CLIENT_ERRORS: dict[type[Exception], ErrorKind] = {
    InvalidRequest: (400, "invalid_request_error", "invalid_request", None),
    DeadlineInfeasible: (422, "invalid_request_error", "deadline_infeasible", None),
    QuoteUnusable: (422, "invalid_request_error", "quote_unusable", None),
    InvalidKey: (401, "invalid_request_error", "invalid_api_key", None),
    MissingScope: (403, "invalid_request_error", "missing_scope", None),
    NotFound: (404, "invalid_request_error", "not_found", None),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded", None),
    WorkRateReached: (429, "rate_limit_error", "rate_limit_exceeded", None),
    BacklogFull: (429, "rate_limit_error", "backlog_full", None),
    TooManyWaiting: (429, "rate_limit_error", "too_many_waiting", 1),
    NotAnswered: (502, "server_error", "server_error", None),
    Busy: (503, "server_error", "too_many_waiting", 1),
    Unserved: (503, "server_error", "model_unserved", 60),  # a worker needs about that long to load a model
    NotInTime: (504, "server_error", "timeout", 1),
}


def error_object(error: ClientError) -> ErrorObject:
    """Returns OpenAI's error object for a stream's event or a line of a batch."""
    _, type_, code, _ = CLIENT_ERRORS[type(error)]
    told = ErrorObject(message=error.message, type=type_, param=error.param, code=error.code or code)
    if isinstance(error, DeadlineInfeasible):
        return DeadlineError(**told.model_dump(), earliest_deadline_s=error.earliest_s)
    return told


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
