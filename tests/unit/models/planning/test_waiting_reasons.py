"""Each of the eight questions of "Why is my request not running?" has a state in which it is the answer."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.client_requests import RequestView
from models.planning.queue_position import place_in_queue
from models.planning.queue_snapshot import BatchInQueue, Decisions, ModelState, QueueSnapshot, WaitingQueue
from models.planning.waiting_reasons import WaitingReason, explain, waits_for
from models.tables import BatchStatus, RequestStatus, StoredBatch, StoredRequest

NOW = datetime(2026, 11, 28, 1, 10, tzinfo=UTC)
MODEL = ModelState(workers=1, largest_tokens=4096)
BATCH = BatchInQueue(ids=("resp_1", "resp_2"), size=2, starts_in_s=0.0, estimated_s=3.0)
SNAPSHOT = QueueSnapshot(
    at=NOW,
    decisions=Decisions(policy="fusion"),
    queue=WaitingQueue(requests=3, batches=(BATCH,)),
    models={"small": MODEL},
)


def view(batch: StoredBatch | None = None, **changed: Any) -> RequestView:
    usual: dict[str, Any] = {
        "id": "resp_2",
        "model": "small",
        "status": RequestStatus.queued,
        "predicted_tokens": 40,
        "prompt_tokens": 9,
        "outgrew_tokens": 0,
        "needs": [],
        "held": False,
        "tier": "default",
        "eta": None,
    }
    return RequestView(StoredRequest(**{**usual, **changed}), batch, 0, NOW)


def decided(**fields: Any) -> QueueSnapshot:
    return SNAPSHOT.model_copy(update={"decisions": Decisions(policy="fusion", **fields)})


def state(**fields: Any) -> QueueSnapshot:
    return SNAPSHOT.model_copy(update={"models": {"small": MODEL.model_copy(update=fields)}})


def explained(seen: RequestView, snapshot: QueueSnapshot | None) -> list[WaitingReason]:
    return explain(seen, snapshot, place_in_queue(seen, snapshot))


FOUR_S = timedelta(seconds=4)
ASSIGNED = StoredBatch(
    id=7,
    worker="gpu-0",
    status=BatchStatus.assigned,
    sends=2,
    joins=False,
    estimated_s=3.0,
    assigned_at=NOW - FOUR_S,
)
STATES = [
    (1, view(predicted_tokens=None), SNAPSHOT, "not predicted yet"),
    (2, view(), None, "No planner has reported for 10 s"),
    (2, view(), decided(paused=True), "paused planning"),
    (2, view(), decided(broker_error="out of memory"), "broker takes no messages (out of memory)"),
    (3, view(job_id="batch_1"), decided(spent_jobs=("batch_1",)), "The budget of its job batch_1 is spent"),
    (3, view(tenant="acme"), decided(spent_tenants=("acme",)), "The budget of its tenant is spent"),
    (4, view(), state(unserved=3, unserved_s=12.0), "For 12 s no worker of the model small"),
    (5, view(needs=["logprobs"]), state(lacking=("logprobs",)), "can do this: logprobs"),
    (5, view(prompt_tokens=5000), SNAPSHOT, "more memory than the largest worker"),
    (6, view(model="large"), SNAPSHOT, "No worker has the model large loaded"),
    (7, view(held=True, job_id="batch_1"), SNAPSHOT, "Its job batch_1 is paused"),
    (8, view(), SNAPSHOT, "its place is 2 of 3"),
]


@pytest.mark.parametrize(("number", "seen", "snapshot", "sentence"), STATES)
def test_a_queued_request_waits_for_the_first_question_whose_answer_blocks(
    number: int, seen: RequestView, snapshot: QueueSnapshot | None, sentence: str
) -> None:
    answers = explained(seen, snapshot)
    assert [answer.blocks for answer in answers] == [False] * (number - 1) + [True]
    assert waits_for(seen, snapshot, place_in_queue(seen, snapshot)) == answers[-1].sentence
    assert sentence in answers[-1].sentence


def test_what_has_begun_waits_for_no_budget_and_no_hours() -> None:
    moves = replace(view(tenant="acme", tier="off_peak"), tokens_so_far=3)
    asked = [answer.question for answer in explained(moves, decided(spent_tenants=("acme",), off_peak_at=2e9))]
    assert not {"Are these its hours?", "Is its budget spent?"} & set(asked)


def test_a_batch_that_its_worker_has_not_taken_is_what_its_request_waits_for() -> None:
    waiting = view(ASSIGNED, status=RequestStatus.in_progress)
    assert (
        explained(waiting, SNAPSHOT)[-1].sentence
        == "Its batch 7 was assigned 4.0 s ago, sent to gpu-0 2 times and not taken."
    )


def test_a_request_that_runs_or_has_ended_waits_for_nothing() -> None:
    running = StoredBatch(
        id=7, worker="gpu-0", status=BatchStatus.running, joins=False, estimated_s=3.0, assigned_at=NOW
    )
    assert not explained(view(running, status=RequestStatus.in_progress), SNAPSHOT)[-1].blocks
    assert not explained(view(status=RequestStatus.completed), None)[-1].blocks


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"suspect_group": "7"}, "runs again apart from others"),
        ({"sealed_group": "7"}, "runs again in a smaller batch"),
        ({"job_id": "batch_1"}, "background work"),
        ({}, "Nothing holds it back but its place"),
    ],
)
def test_what_slows_a_request_without_blocking_it_is_said(row: dict[str, Any], sentence: str) -> None:
    assert sentence in explained(view(**row), SNAPSHOT)[6].sentence
