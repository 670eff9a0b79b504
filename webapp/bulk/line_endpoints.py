"""The calls that a bulk job's lines may make: each with its own body, its own checks and its own answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from models.client_requests import RequestView
from models.queue_position import QueuePlace
from webapp.chat_api import chat_completion_of, chat_submission, completion_of, completion_submission
from webapp.chat_schemas import CreateChatCompletion, CreateCompletion
from webapp.response_objects import response_of
from webapp.response_schemas import CreateResponse
from webapp.responses_api import response_submission
from webapp.submission import Submission


@dataclass(frozen=True, slots=True)
class LineEndpoint:
    """A call: the model of its body, what a body asks for in a tenant's name, the object that answers it."""

    body: type[BaseModel]
    submission: Callable[[Any, str], Submission]
    answer: Callable[[RequestView], BaseModel]


ENDPOINTS: Mapping[str, LineEndpoint] = {
    "/v1/chat/completions": LineEndpoint(CreateChatCompletion, chat_submission, chat_completion_of),
    "/v1/responses": LineEndpoint(CreateResponse, response_submission, lambda view: response_of(view, QueuePlace())),
    "/v1/completions": LineEndpoint(CreateCompletion, completion_submission, completion_of),
}
