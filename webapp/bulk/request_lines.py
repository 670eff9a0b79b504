"""A line of an uploaded file becomes a request, or an error that says what is wrong with it. No queries, no clock."""

from dataclasses import dataclass
from typing import Any, Literal

import structlog
from pydantic import Field, ValidationError
from pydantic_core import from_json

from inference.request_tokens import TokenizerAway
from models.bulk.bulk_feed import NewLine
from models.planning.queue_position import QueueSnapshot
from webapp.bulk.line_endpoints import ENDPOINTS
from webapp.client_errors import ERROR_TABLE, ClientError, InvalidRequest, error_object, field_path, validation_message
from webapp.field_types import Body, Text
from webapp.limits.prompt_limits import PromptLimits
from webapp.submission import accepted_request

MAX_NAME_LENGTH = 512  # characters of a custom_id; OpenAI names no bound

log = structlog.get_logger()


class RequestLine(Body):
    """One line: OpenAI's request input object."""

    custom_id: Text = Field(min_length=1, max_length=MAX_NAME_LENGTH)
    method: Literal["POST"]
    url: Text
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineReader:
    """Reads the lines of one job, whose requests all go to one endpoint, in the name of its tenant."""

    endpoint: str
    tenant: str
    limits: PromptLimits
    snapshot: QueueSnapshot | None  # what the workers cannot do, as far as it is known

    def read(self, number: int, data: bytes) -> NewLine:
        """The line of this number as a request or an error; raises TokenizerAway if that cannot be told now."""
        name = None
        try:
            parsed = _parsed(data)
            name = _name_of(parsed)
            line = RequestLine.model_validate(parsed)
            if line.url != self.endpoint:
                raise InvalidRequest(
                    f"The url of this line is '{line.url[:80]}', but the batch is for '{self.endpoint}'.",
                    param="url",
                    code="mismatched_url",
                )
            submission = ENDPOINTS[self.endpoint].submission(line.body, self.tenant, self.limits)
            return NewLine(number, name, accepted_request(self.limits, self.snapshot, submission))
        except ValidationError as error:
            return NewLine(number, name, error=_storable(_validation_error(error)))
        except ClientError as error:
            return NewLine(number, name, error=_storable(line_error(error)))
        except TokenizerAway:
            raise
        except Exception:
            log.exception("line not read", line=number)
            return NewLine(number, name, error=dict(MISTAKE))


MISTAKE = {
    "status": 500,
    "type": "server_error",
    "code": "server_error",
    "message": "The service made a mistake with this line. It is logged.",
    "param": None,
}


def line_error(error: ClientError) -> dict[str, Any]:
    """What a line keeps of an error of its call: the same that the call would be answered with."""
    return {"status": ERROR_TABLE[type(error)][0], **error_object(error).model_dump()}


def duplicate(line: NewLine) -> NewLine:
    """The line, if an earlier one has its custom_id."""
    error = InvalidRequest(
        "An earlier line of this file has the same custom_id.", param="custom_id", code="duplicate_custom_id"
    )
    return NewLine(line.line, line.custom_id, error=line_error(error))


def _storable(error: dict[str, Any]) -> dict[str, Any]:
    """The error without NUL, which names of unknown fields may have and Postgres cannot store."""
    return {name: value.replace("\0", "\ufffd") if isinstance(value, str) else value for name, value in error.items()}


def _parsed(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"The line is no JSON: {error}.", code="invalid_json_line") from error


def _name_of(parsed: Any) -> str | None:
    """The line's custom_id, if it has one that can be shown."""
    name = parsed.get("custom_id") if isinstance(parsed, dict) else None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and "\0" not in name else None


def _validation_error(error: ValidationError) -> dict[str, Any]:
    first = error.errors(include_url=False)[0]
    param = field_path(first["loc"])
    message = "The line must be a JSON object." if first["type"] == "model_type" and not param else None
    return {
        "status": 400,
        "type": "invalid_request_error",
        "code": first["type"],
        "message": message or validation_message(first, param),
        "param": param,
    }
