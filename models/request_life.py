"""The life of a request as a table: its states, the events that happen to it, and the state that follows.

A request is stored `queued`. The planner claims it for a batch: it is `in_progress`, until its worker writes how its
answer ended, or gives it back to the queue unfinished, because its slice ended, memory ran out or the worker was lost.
A queued request that is cancelled ends at once. A running one is only marked: its worker reads the mark with its next
heartbeat, and the request ends when its row is next written. A request fails if nothing can answer it: it fits no
worker, its deadline has passed, or an engine failed on it alone. A queued request that is the twin of another one ends
with its answer, and is not claimed before that (`models.planning.twins`). An ended request does not change any more.

Each statement of `models` that sets `requests.status` names its events in a comment behind `update requests`.
`tests/unit/models/test_request_life.py` compares the statements with this table, and
`tests/integration/database/test_request_life.py` compares their effects with it.
"""

import enum
from collections.abc import Mapping
from typing import Literal


class RequestStatus(enum.StrEnum):
    """States of OpenAI's Responses API; the last four are final."""

    queued = "queued"
    in_progress = "in_progress"
    completed = "completed"
    incomplete = "incomplete"  # cut off at its output limit
    failed = "failed"
    cancelled = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the request has ended, after which its row does not change."""
        return not LIFE[self]


Event = Literal["claim", "complete", "cut_off", "fail", "give_back", "cancel", "stop"]
LIFE: Mapping[RequestStatus, Mapping[Event, RequestStatus]] = {
    RequestStatus.queued: {
        "claim": RequestStatus.in_progress,
        "complete": RequestStatus.completed,  # it is a twin of a request that was answered
        "cut_off": RequestStatus.incomplete,
        "cancel": RequestStatus.cancelled,
        "fail": RequestStatus.failed,
    },
    RequestStatus.in_progress: {
        "complete": RequestStatus.completed,
        "cut_off": RequestStatus.incomplete,
        "fail": RequestStatus.failed,
        "give_back": RequestStatus.queued,
        "cancel": RequestStatus.in_progress,  # the row records that a cancel was requested
        "stop": RequestStatus.cancelled,
    },
    RequestStatus.completed: {},
    RequestStatus.incomplete: {},
    RequestStatus.failed: {},
    RequestStatus.cancelled: {},
}
UNFINISHED = tuple(status for status in RequestStatus if not status.final)
