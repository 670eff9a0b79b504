"""Turns a line of an uploaded file into a request, or into an error that says what is wrong. No queries, no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import structlog
from pydantic import BaseModel, Field, ValidationError

from inference.engine_errors import TokenizerAway
from models.bulk.bulk_feed import NewLine
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.planning.queue_snapshot import QueueSnapshot
from protocol.chat.chat_answers import chat_completion_of, completion_of
from protocol.chat.chat_schemas import CreateChatCompletion, CreateCompletion
from protocol.chat.chat_submissions import chat_submission, completion_submissions
from protocol.client_errors import (
    CLIENT_ERRORS,
    ClientError,
    InvalidRequest,
    error_object,
    field_path,
    validation_message,
)
from protocol.field_types import Body, Text
from protocol.json_bytes import bounded_json
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.several_answers import accepted_requests, several
from protocol.requests.submission import Submission, accepted_request
from protocol.responses.response_objects import response_of
from protocol.responses.response_schemas import CreateResponse
from protocol.responses.response_submission import response_submission
from protocol.texts.text_objects import embeddings_of, ranking_of, scores_of
from protocol.texts.text_schemas import CreateEmbeddings, CreateRerank, CreateScore
from protocol.texts.text_submissions import embeddings_submission, rerank_submission, score_submission

UNSUPPORTED = "unsupported_value"  # the code for options that are accepted in calls but not in lines

MAX_NAME_LENGTH = 512  # characters of a custom_id; OpenAI documents no bound
log = structlog.get_logger()
MISTAKE = {
    "status": 500,
    "type": "server_error",
    "code": "server_error",
    "message": "The service made a mistake with this line. It is logged.",
    "param": None,
}


@dataclass(frozen=True, slots=True)
class LineEndpoint:
    """A call that lines can make: the type of its body, the submissions of a body, the object that answers it."""

    body: type[BaseModel]
    submissions: Callable[[Any, str, PromptLimits], Sequence[Submission]]
    answer: Callable[[Sequence[RequestView]], BaseModel]

    def stored(self, body: Mapping[str, Any], tenant: str, limits: PromptLimits) -> list[Submission]:
        """Returns the submissions of a line's body.

        Raises ValidationError, and InvalidRequest for options that only single calls have.
        """
        submissions = self.submissions(self.body.model_validate(body), tenant, limits)
        if submissions[0].prompt is not submissions[-1].prompt:
            raise InvalidRequest("A line of a batch has one prompt.", param="prompt", code=UNSUPPORTED)
        if submissions[0].body.stream:
            raise InvalidRequest("A line of a batch cannot be streamed.", param="stream", code=UNSUPPORTED)
        if submissions[0].service_tier == "priority":
            why = "A line of a batch gets what others leave: send a call of its own for priority."
            raise InvalidRequest(why, param="service_tier", code=UNSUPPORTED)
        if submissions[0].quote is not None:
            raise InvalidRequest("A quote is for a call of its own.", param="magnus.quote", code=UNSUPPORTED)
        # the output file is made from the stored answer, so the answer is stored whatever the client's `store` says
        stored = (replace(one, body=one.body.model_copy(update={"store": True})) for one in submissions)
        return [replace(one, service_tier="flex") for one in stored]


def _of_chat(body: CreateChatCompletion, tenant: str, limits: PromptLimits) -> Sequence[Submission]:
    return several(chat_submission(body, tenant, limits), body.n or 1)


def _of_response(body: CreateResponse, tenant: str, limits: PromptLimits) -> Sequence[Submission]:
    # a background response sends a webhook when it ends; in a batch, only the end of the batch sends one
    submission = response_submission(body, tenant, limits)
    return [replace(submission, body=submission.body.model_copy(update={"background": False}))]


def _one(make: Callable[[Any, str, PromptLimits], Submission]) -> Callable[[Any, str, PromptLimits], list[Submission]]:
    return lambda body, tenant, limits: [make(body, tenant, limits)]


ENDPOINTS: Mapping[str, LineEndpoint] = {
    "/v1/chat/completions": LineEndpoint(CreateChatCompletion, _of_chat, chat_completion_of),
    "/v1/responses": LineEndpoint(CreateResponse, _of_response, lambda views: response_of(views[0], QueuePlace())),
    "/v1/completions": LineEndpoint(
        CreateCompletion, completion_submissions, lambda views: completion_of(views, answers_a_prompt=len(views))
    ),
    "/v1/embeddings": LineEndpoint(CreateEmbeddings, _one(embeddings_submission), embeddings_of),
    "/v1/rerank": LineEndpoint(CreateRerank, _one(rerank_submission), ranking_of),
    "/v1/score": LineEndpoint(CreateScore, _one(score_submission), scores_of),
}
MISMATCHED_URL = "mismatched_url"


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
    snapshot: QueueSnapshot | None  # names the abilities that the workers lack

    def read(self, number: int, data: bytes) -> NewLine:
        """Reads line `number` as a request or an error; raises TokenizerAway while its tokens cannot be counted."""
        name = None
        try:
            parsed = _parsed(data)
            name = _name_of(parsed)
            line = RequestLine.model_validate(parsed)
            if line.url != self.endpoint:
                raise InvalidRequest(
                    f"The url of this line is '{line.url[:80]}', but the batch is for '{self.endpoint}'.",
                    param="url",
                    code=MISMATCHED_URL,
                )
            submissions = ENDPOINTS[self.endpoint].stored(line.body, self.tenant, self.limits)
            accepted = partial(accepted_request, self.limits, self.snapshot)
            return NewLine(number, name, accepted_requests(submissions, accepted))
        except (ValidationError, ClientError) as error:
            known = _invalid_request(error) if isinstance(error, ValidationError) else error
            return NewLine(number, name, error=_storable(line_error(known)))
        except TokenizerAway:
            raise
        except Exception:
            log.exception("line not read", line=number)
            return NewLine(number, name, error=dict(MISTAKE))


def line_error(error: ClientError) -> dict[str, Any]:
    """Returns the error as it is stored for a line: the error object that the call would be answered with."""
    return {"status": CLIENT_ERRORS[type(error)][0], **error_object(error).model_dump()}


def unreadable(number: int) -> NewLine:
    """Returns the error of a line whose check ended the process several times."""
    error = InvalidRequest("This line cannot be checked: each try ended the process.", code="line_not_checked")
    return NewLine(number, None, error=line_error(error))


def lost(number: int) -> NewLine:
    """Returns the error of a line that the stored file lacks, because a part of the file is damaged."""
    error = {"message": "This line cannot be read: its part of the stored file is damaged.", "code": "line_lost"}
    return NewLine(number, None, error=MISTAKE | error)


def duplicate(line: NewLine) -> NewLine:
    """Returns the line with an error, because an earlier line has its custom_id."""
    error = InvalidRequest(
        "An earlier line of this file has the same custom_id.", param="custom_id", code="duplicate_custom_id"
    )
    return NewLine(line.line, line.custom_id, error=line_error(error))


def _storable(error: dict[str, Any]) -> dict[str, Any]:
    """Returns the error without NUL, which names of unknown fields may have and Postgres cannot store."""
    return {name: value.replace("\0", "\ufffd") if isinstance(value, str) else value for name, value in error.items()}


def _parsed(data: bytes) -> Any:
    try:
        return bounded_json(data)
    except ValueError as error:
        raise InvalidRequest(f"The line is no JSON: {error}.", code="invalid_json_line") from error


def _name_of(parsed: Any) -> str | None:
    """Returns the line's custom_id, None if it has none that can be stored."""
    name = parsed.get("custom_id") if isinstance(parsed, dict) else None
    return name if isinstance(name, str) and 0 < len(name) <= MAX_NAME_LENGTH and "\0" not in name else None


def _invalid_request(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    param = field_path(first["loc"])
    not_an_object = first["type"] == "model_type" and not param
    message = "The line must be a JSON object." if not_an_object else validation_message(first, param)
    return InvalidRequest(message, param=param, code=first["type"])
