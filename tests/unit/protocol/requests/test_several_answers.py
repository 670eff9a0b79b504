"""Several answers to one call: how many log probabilities they may have together, and what a repeat of it does."""

import dataclasses
from datetime import UTC, datetime

import pytest

from inference.prompts.model_prompt import ModelPrompt
from models.client_requests import RequestView
from models.new_requests import REFUSED_BY_ENGINE, NewRequest
from models.tables import RequestStatus, StoredRequest
from protocol.client_errors import ClientError, InvalidRequest, NotAnswered, error_object
from protocol.requests.several_answers import (
    MOST_BYTES,
    MOST_LOGPROBS,
    accepted_requests,
    check_logprobs,
    require_answer,
)
from protocol.requests.submission import Submission
from protocol.responses.response_schemas import CreateResponse
from request_body import RequestBody

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


@pytest.mark.parametrize(
    ("key", "status", "code", "said"),
    [
        (None, "failed", "server_error", "Why[.]$"),
        ("k", "failed", "server_error", "makes a new request"),
        ("k", "failed", "deadline_exceeded", "makes a new request"),
        ("k", "failed", "invalid_prompt", "gets the same; send another key"),
        ("k", "cancelled", None, "gets the same; send another key"),
        (None, "cancelled", None, "was cancelled[.]$"),
    ],
)
def test_who_gets_no_answer_under_a_key_is_told_what_a_repeat_does(
    key: str | None, status: str, code: str | None, said: str
) -> None:
    error = {"code": code, "message": "Why."}
    ended = StoredRequest(id="resp_1", status=RequestStatus(status), error=error, idempotency_key=key)
    with pytest.raises((NotAnswered, InvalidRequest), match=said):
        require_answer(RequestView(ended, None, 0, datetime.now(UTC)))


@pytest.mark.parametrize(("code", "raised"), [(REFUSED_BY_ENGINE, InvalidRequest), ("server_error", NotAnswered)])
def test_what_no_engine_can_answer_is_the_clients_error_and_a_failure_the_services(
    code: str, raised: type[ClientError]
) -> None:
    error = {"code": code, "message": "its pattern 'a' cannot be kept to: it failed"}
    failed = StoredRequest(id="resp_1", status=RequestStatus.failed, error=error)
    with pytest.raises(raised, match="its pattern 'a' cannot") as caught:
        require_answer(RequestView(failed, None, 0, datetime.now(UTC)))
    assert error_object(caught.value).code == code


def test_answers_whose_prompts_have_too_many_bytes_together_are_refused() -> None:
    asked = dataclasses.replace(ASKED, body=RequestBody())
    large = dataclasses.replace(NEW, input="x" * (MOST_BYTES // 8))
    assert len(accepted_requests([asked] * 7, lambda _: large)) == 7
    with pytest.raises(InvalidRequest, match="Ask for fewer") as caught:
        accepted_requests([asked] * 8, lambda _: large)
    assert caught.value.param == "n"
