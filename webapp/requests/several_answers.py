"""One call with several answers: each is a request of its own, and the call waits for all of them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from flask import request

from models.client_requests import RequestView
from models.new_requests import NewRequest
from webapp.app_context import AppContext, current_context
from webapp.client_errors import InvalidRequest, NotInTime
from webapp.requests.stored_requests import cancel_request, find_request, forget_unstored, require_answer, wait_for_ends
from webapp.requests.submission import Submission, new_request, store
from webapp.waiting.patience import Patience, patience_of

# The most log probabilities in all answers to one call, those of the likeliest tokens included: each takes 3 us to be
# read and written, while other calls wait. Streams send them piece by piece and have no bound. Not tuned.
MOST_LOGPROBS = 2**17
PART = "\x1f"  # clients' keys cannot have this character, so a part's key never equals another key


def several(submission: Submission, answers: int) -> list[Submission]:
    """Returns one request for each answer to the same prompt; with a seed, each gets another seed."""
    body, seed = submission.body, submission.body.sampling.seed
    if seed is None:
        return [submission] * answers
    seeded = (replace(body.sampling, seed=(seed + number) % 2**63) for number in range(answers))
    return [replace(submission, body=body.model_copy(update={"sampling": sampling})) for sampling in seeded]


def store_all(context: AppContext, submissions: Sequence[Submission]) -> list[RequestView]:
    """Stores requests in this order; stores none if one of them is refused.

    If storing one fails, cancels those stored before, unless an Idempotency-Key says that a retry will find them.
    """
    new = accepted_requests(submissions, partial(new_request, context))
    stored: list[RequestView] = []
    try:
        for number, (submission, row) in enumerate(zip(submissions, new, strict=True)):
            stored.append(store(context, submission, row, f"{PART}{number}" if number else ""))
    except BaseException:
        if submissions[0].idempotency_key is None:
            for view in stored:
                cancel_request(context, view.request.tenant, view.request.id)
        raise
    return stored


def accepted_requests(
    submissions: Sequence[Submission], accepted: Callable[[Submission], NewRequest]
) -> list[NewRequest]:
    """Returns the rows to insert for the answers of one call; `accepted` checks a submission and returns its row."""
    new: list[NewRequest] = []
    for number, submission in enumerate(submissions):
        same = number > 0 and submission.prompt is submissions[number - 1].prompt
        if same:  # such answers differ only in their seeds, so the prompt is encoded and checked once
            seed = {"seed": submission.body.sampling.seed}
            new.append(replace(new[-1], body=new[-1].body | {"sampling": new[-1].body["sampling"] | seed}))
        else:
            new.append(accepted(submission))
    check_logprobs(submissions, new)
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


def submit_all_and_wait(
    context: AppContext, submissions: Sequence[Submission], patience: Patience
) -> list[RequestView]:
    """Stores requests and waits until all are final or the client's wait is over; raises Busy before any is stored.

    Cancels them if their client disconnects meanwhile, unless an Idempotency-Key says that the client may come back.
    """
    tenant = submissions[0].tenant
    with context.waiting_calls.reserve_slot(tenant):
        stored = store_all(context, submissions)
        calls = wait_for_ends(context, stored, patience)
    if any(call.over == "left" for call in calls) and submissions[0].idempotency_key is None:
        for call in calls:
            cancel_request(context, tenant, call.id)
    return [call.view or find_request(context, tenant, call.id) for call in calls]


def wait_for_answers(submissions: Sequence[Submission]) -> list[RequestView]:
    """Returns the answered requests; raises NotInTime, NotAnswered, or InvalidRequest if one was cancelled."""
    context, first = current_context(), submissions[0]
    patience = patience_of(request, context.wait_s)
    views = submit_all_and_wait(context, submissions, patience)
    late = [view.request.id for view in views if not view.request.status.final]
    if late and first.idempotency_key is not None:
        raise NotInTime(f"No answer within {patience.wait_s:g} s. The same Idempotency-Key goes on waiting for it.")
    if late:
        for late_id in late:
            cancel_request(context, first.tenant, late_id)
        raise NotInTime(
            f"No answer within {patience.wait_s:g} s; {late[0]} was cancelled. "
            "For long work send POST /v1/responses with background=true and poll, or an Idempotency-Key and try again."
        )
    for view in views:
        require_answer(view)
    forget_unstored(context, views)
    return views
