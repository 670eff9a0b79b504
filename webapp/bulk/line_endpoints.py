"""The calls that a bulk job's lines may make: each with its own body, its own checks and its own answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from webapp.chat.chat_api import chat_completion_of, chat_submission, completion_of, completion_submissions
from webapp.chat.chat_schemas import CreateChatCompletion, CreateCompletion
from webapp.client_errors import InvalidRequest
from webapp.completions.several_answers import several
from webapp.limits.prompt_limits import PromptLimits
from webapp.responses.response_objects import response_of
from webapp.responses.response_schemas import CreateResponse
from webapp.responses.responses_api import response_submission
from webapp.submission import Submission

UNSUPPORTED = "unsupported_value"  # the code of what calls take and lines do not


@dataclass(frozen=True, slots=True)
class LineEndpoint:
    """A call: the model of its body, what a body asks for in a tenant's name, the object that answers it."""

    body: type[BaseModel]
    submissions: Callable[[Any, str, PromptLimits], Sequence[Submission]]
    answer: Callable[[RequestView], BaseModel]

    def submission(self, body: Mapping[str, Any], tenant: str, limits: PromptLimits) -> Submission:
        """What a line's body asks for; raises ValidationError, and InvalidRequest for what no line can have."""
        submissions = self.submissions(self.body.model_validate(body), tenant, limits)
        if len(submissions) > 1:
            raise InvalidRequest("A line of a batch has one prompt and one answer.", param="n", code=UNSUPPORTED)
        if submissions[0].body.stream:
            raise InvalidRequest("A line of a batch cannot be streamed.", param="stream", code=UNSUPPORTED)
        if not submissions[0].body.store:
            raise InvalidRequest("The answer to a line of a batch is stored.", param="store", code=UNSUPPORTED)
        return submissions[0]


def _of_chat(body: CreateChatCompletion, tenant: str, limits: PromptLimits) -> Sequence[Submission]:
    return several(chat_submission(body, tenant), body.n or 1)


def _of_response(body: CreateResponse, tenant: str, limits: PromptLimits) -> Sequence[Submission]:
    # a batch tells of its own end, and not of each line's as of a response in the background
    submission = response_submission(body, tenant, limits)
    return [replace(submission, body=submission.body.model_copy(update={"background": False}))]


ENDPOINTS: Mapping[str, LineEndpoint] = {
    "/v1/chat/completions": LineEndpoint(CreateChatCompletion, _of_chat, lambda view: chat_completion_of([view])),
    "/v1/responses": LineEndpoint(CreateResponse, _of_response, lambda view: response_of(view, QueuePlace())),
    "/v1/completions": LineEndpoint(CreateCompletion, completion_submissions, lambda view: completion_of([view])),
}
