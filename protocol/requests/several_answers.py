"""One call with several answers: each is a request of its own."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from models.client_requests import RequestView
from models.new_requests import REFUSED_BY_ENGINE, NewRequest, failed_by_service
from models.tables import RequestStatus, StoredRequest
from protocol.client_errors import InvalidRequest, NotAnswered
from protocol.requests.submission import Submission

# The most log probabilities in all answers to one call, those of the likeliest tokens included: each takes 3 us to be
# read and written, while other calls wait. Streams send them piece by piece and have no bound. Not tuned.
MOST_LOGPROBS = 2**17
# The most bytes of all requests of one call, which one statement stores; each answer has a copy of its prompt. Not
# tuned.
MOST_BYTES = 2**26


def several(submission: Submission, answers: int) -> list[Submission]:
    """Returns one request for each answer to the same prompt; with a seed, each gets another seed."""
    body, seed = submission.body, submission.body.sampling.seed
    if seed is None:
        return [submission] * answers
    seeded = (replace(body.sampling, seed=(seed + number) % 2**63) for number in range(answers))
    return [replace(submission, body=body.model_copy(update={"sampling": sampling})) for sampling in seeded]


def accepted_requests(
    submissions: Sequence[Submission], accepted: Callable[[Submission], NewRequest]
) -> list[NewRequest]:
    """Returns the rows to insert for the answers of one call; `accepted` checks a submission and returns its row."""
    new: list[NewRequest] = []
    for number, submission in enumerate(submissions):
        same = number > 0 and submission.prompt is submissions[number - 1].prompt
        if same:  # such answers differ only in their seeds, so the prompt is encoded and checked once
            sampling = new[-1].body.get("sampling", {}) | {"seed": submission.body.sampling.seed}
            new.append(replace(new[-1], body=new[-1].body | {"sampling": sampling, "repeats_prompt": True}))
        else:
            new.append(accepted(submission))
    check_logprobs(submissions, new)
    if len(new) > 1 and sum(one.size_bytes for one in new) > MOST_BYTES:
        most = f"more than {MOST_BYTES:,} bytes together, because each has a copy of its prompt"
        raise InvalidRequest(f"The {len(new)} answers of this call would take {most}. Ask for fewer.", param="n")
    return new


def check_logprobs(submissions: Sequence[Submission], new: Sequence[NewRequest]) -> None:
    """Raises InvalidRequest if several answers of one call would have too many log probabilities."""
    if len(submissions) == 1 or submissions[0].body.stream:
        return
    asked = zip(submissions, new, strict=True)
    most = sum(
        row.limit_tokens * (1 + (one.body.top_logprobs or 0)) for one, row in asked if one.body.top_logprobs is not None
    )
    if most > MOST_LOGPROBS:
        raise InvalidRequest(
            f"These answers could have {most:,} log probabilities, their likeliest tokens included, but a call has at "
            f"most {MOST_LOGPROBS:,}. Ask for fewer answers, tokens or likeliest tokens, or stream them.",
            param=submissions[0].names.logprobs,
        )


def one_by_one(views: Iterable[RequestView]) -> Iterator[RequestView]:
    """Yields the views; lets other calls run before each."""
    for view in views:
        time.sleep(0)
        yield view


def require_answer(view: RequestView) -> None:
    """Checks that a final request has an answer; raises NotAnswered, InvalidRequest if it was cancelled or refused."""
    stored = view.request
    if stored.status is RequestStatus.failed:
        error = stored.error or {}
        reason = f"{stored.id} failed: {error.get('message', 'no reason is known')}"
        kind = InvalidRequest if error.get("code") == REFUSED_BY_ENGINE else NotAnswered
        raise kind(reason + _of_a_repeat(stored), code=error.get("code"))
    if stored.status is RequestStatus.cancelled:
        raise InvalidRequest(f"{stored.id} was cancelled.{_of_a_repeat(stored)}", code="cancelled")


def _of_a_repeat(ended: StoredRequest) -> str:
    """Returns what a repeat of the call does, if it has an Idempotency-Key."""
    if ended.idempotency_key is None:
        return ""
    if failed_by_service(ended):
        return " A repeat with the same Idempotency-Key makes a new request."
    return " A repeat with the same Idempotency-Key gets the same; send another key for a new request."
