"""Explains why a request is not running: questions in the order in which they are decided, each answered in a sentence.

Everything is read from the request's row and the planner's last snapshot, so that an explanation costs no statement.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from models.planning.queue_snapshot import STALE_AFTER, Decisions, QueueSnapshot
from models.tables import BatchStatus, RequestStatus, StoredRequest
from scheduling.request import BACKGROUND_TIERS

Answer = tuple[bool, str]  # whether the request waits for what the question asks, and the answer as a sentence


@dataclass(frozen=True, slots=True)
class WaitingReason:
    """The answer to one question; `blocks` says whether the request waits for what the question asks."""

    question: str
    blocks: bool
    sentence: str


def explain(view: RequestView, snapshot: QueueSnapshot | None, place: QueuePlace) -> list[WaitingReason]:
    """Answers the questions for a request with this place in the queue, up to the first answer that blocks.

    The request waits for what that answer says; later questions are not decided yet. A request that runs or has ended
    waits for nothing, so that no answer blocks.
    """
    answers: list[WaitingReason] = []
    for answer in _answers(view, snapshot, place):
        answers.append(answer)
        if answer.blocks:
            break
    return answers


def waits_for(view: RequestView, snapshot: QueueSnapshot | None, place: QueuePlace) -> str | None:
    """Returns what a request waits for in one sentence; None if it runs or has ended."""
    return next((answer.sentence for answer in explain(view, snapshot, place) if answer.blocks), None)


def _answers(view: RequestView, snapshot: QueueSnapshot | None, place: QueuePlace) -> Iterator[WaitingReason]:
    request = view.request
    if request.status.final:
        yield WaitingReason("Has it ended?", False, f"It is {request.status.value}.")
    elif request.status is RequestStatus.in_progress:
        yield WaitingReason("Has its worker taken its batch?", *_is_taken(view))
    else:
        if request.twin_of is not None:
            yield WaitingReason("Is its answer computed already?", True, f"It gets the answer of {request.twin_of}.")
        yield WaitingReason("Is its length predicted?", *_is_predicted(request))
        yield WaitingReason("Does a planner assign work?", *_is_planned(snapshot))
        begun = view.tokens_so_far > 0  # it goes on, whatever the hour and whoever has spent a budget
        if request.tier == "off_peak" and not begun:
            yield WaitingReason("Are these its hours?", *_are_these_its_hours(snapshot))
        if not begun:
            yield WaitingReason("Is its budget spent?", *_is_its_budget_spent(request, snapshot))
        if snapshot is not None:
            yield WaitingReason("May a worker of its model get work?", *_may_a_worker_serve(request, snapshot))
            yield WaitingReason("Can a worker do what it needs?", *_can_a_worker_serve(request, snapshot))
            yield WaitingReason("Has a worker its model loaded?", *_is_the_model_loaded(request, snapshot))
            yield WaitingReason("Is it held back?", *_is_it_held_back(request))
            yield WaitingReason("Is it its turn?", *_is_it_its_turn(snapshot, place))


def _is_predicted(request: StoredRequest) -> Answer:
    if request.predicted_tokens is None:
        return True, (
            "Its length is not predicted yet: the predictor does so within a second, else the planner after five."
        )
    return False, f"It is predicted to have {request.predicted_tokens} tokens."


def _is_planned(snapshot: QueueSnapshot | None) -> Answer:
    if snapshot is None:
        return True, f"No planner has reported for {STALE_AFTER.total_seconds():.0f} s: see `magnus doctor`."
    if snapshot.decisions.paused:
        return True, "An operator has paused planning: the dashboard's page Queue resumes it."
    if snapshot.decisions.broker_error is not None:
        return True, f"The broker takes no messages ({snapshot.decisions.broker_error}): start it again."
    return False, f"A planner leads, under the policy {snapshot.decisions.policy}."


def _are_these_its_hours(snapshot: QueueSnapshot | None) -> Answer:
    if snapshot is not None and snapshot.decisions.off_peak_at is not None:
        begin = datetime.fromtimestamp(snapshot.decisions.off_peak_at, UTC)
        return True, f"It is off-peak work, and the next off-peak hours begin at {begin:%Y-%m-%d %H:%M} UTC."
    return False, "These are off-peak hours."


def _is_its_budget_spent(request: StoredRequest, snapshot: QueueSnapshot | None) -> Answer:
    decisions = Decisions() if snapshot is None else snapshot.decisions
    if request.job_id in decisions.spent_jobs:
        return True, f"The budget of its job {request.job_id} is spent: raise it."
    if request.tenant in decisions.spent_tenants:
        return True, "The budget of its tenant is spent: it goes on when that begins anew, or an operator raises it."
    return False, "No budget keeps it."


def _may_a_worker_serve(request: StoredRequest, snapshot: QueueSnapshot) -> Answer:
    state = snapshot.of(request.served_by)
    if state.unserved:
        return True, (
            f"For {state.unserved_s:.0f} s no worker of the model {request.served_by} has been able to get work: "
            "each is dead, drained, stopping or has a fault, which `magnus doctor` names."
        )
    return False, f"A worker of the model {request.served_by} may."


def _can_a_worker_serve(request: StoredRequest, snapshot: QueueSnapshot) -> Answer:
    state = snapshot.of(request.served_by)
    missing = sorted(set(request.needs) & set(state.lacking))
    if missing:
        return True, f"No worker of its model can do this: {', '.join(missing)}."
    largest = state.largest_tokens
    if largest is not None and max(request.prompt_tokens, request.outgrew_tokens) >= largest:
        return True, f"It needs more memory than the largest worker has, which holds {largest} tokens."
    return False, "A worker has the abilities and the memory that it needs."


def _is_the_model_loaded(request: StoredRequest, snapshot: QueueSnapshot) -> Answer:
    if not snapshot.of(request.served_by).workers:
        return True, (
            f"No worker has the model {request.served_by} loaded: one changes to it once its waiting requests are "
            "worth the seconds of the change."
        )
    return False, f"A worker has the model {request.served_by} loaded."


def _is_it_held_back(request: StoredRequest) -> Answer:
    if request.held:
        return True, f"Its job {request.job_id} is paused: resume the job."
    if request.suspect_group is not None:
        return False, "An engine failed while it was served: it runs again apart from others, in ever smaller groups."
    if request.sealed_group is not None:
        return False, "Memory ran out while it was served: it runs again in a smaller batch."
    if request.job_id is not None or request.tier in BACKGROUND_TIERS:
        return False, "It is background work, which gets what other requests leave free."
    return False, "Nothing holds it back but its place."


def _is_it_its_turn(snapshot: QueueSnapshot, place: QueuePlace) -> Answer:
    waiting = snapshot.queue.requests
    where = f"its place is {place.position} of {waiting}" if place.position else f"{waiting} wait"
    return True, f"Others go first, or their memory is not free yet: {where}."


def _is_taken(view: RequestView) -> Answer:
    batch = view.batch
    if batch is None or batch.status is not BatchStatus.assigned:
        worker = "its worker" if batch is None else batch.worker
        return False, f"It runs on {worker}, and has {view.tokens_so_far} tokens."
    sent = f"sent to {batch.worker} {batch.sends} times and not taken" if batch.sends else "not sent yet"
    waits = (view.now - batch.assigned_at).total_seconds()
    return True, f"Its batch {batch.id} was assigned {waits:.1f} s ago, {sent}."
