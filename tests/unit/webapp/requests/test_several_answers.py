"""Several answers to one call: how many log probabilities they may have together."""

import dataclasses

import pytest

from inference.model_prompt import ModelPrompt
from models.new_requests import NewRequest
from request_body import RequestBody
from webapp.client_errors import InvalidRequest
from webapp.requests.several_answers import MOST_LOGPROBS, check_logprobs
from webapp.requests.submission import Submission
from webapp.responses.response_schemas import CreateResponse

ASKED = Submission(
    tenant="acme",
    idempotency_key=None,
    model="words",
    prompt=ModelPrompt("", "eins"),
    body=RequestBody(top_logprobs=3),
    sent=CreateResponse(model="words", input="eins"),
    limit_tokens=None,
)
NEW = NewRequest(
    tenant="acme",
    model="words",
    application="a",
    instructions="",
    input="eins",
    body={},
    prompt_tokens=1,
    input_tokens=1,
    limit_tokens=MOST_LOGPROBS // 8,
)


def test_answers_may_have_as_many_log_probabilities_as_the_bound_and_not_more() -> None:
    check_logprobs([ASKED] * 2, [NEW] * 2)
    with pytest.raises(InvalidRequest, match="log probabilities") as caught:
        check_logprobs([ASKED] * 3, [NEW] * 3)
    assert caught.value.param == "logprobs"


def test_one_answer_a_stream_and_answers_without_log_probabilities_have_no_bound() -> None:
    check_logprobs([ASKED], [dataclasses.replace(NEW, limit_tokens=10 * MOST_LOGPROBS)])
    check_logprobs([dataclasses.replace(ASKED, body=RequestBody(top_logprobs=3, stream=True))] * 9, [NEW] * 9)
    check_logprobs([dataclasses.replace(ASKED, body=RequestBody())] * 9, [NEW] * 9)
