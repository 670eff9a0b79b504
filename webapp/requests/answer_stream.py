"""Streams an answer to one client: pieces from the broker while it is generated, the rest from Postgres."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from time import monotonic

import structlog
from flask import Response
from sqlalchemy.exc import SQLAlchemyError

from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace, place_in_stream
from protocol.client_errors import Busy, NotAnswered
from protocol.field_types import AskedProgress
from protocol.requests.submission import Submission
from protocol.streaming.answer_progress import ShownProgress
from protocol.streaming.server_sent_events import KEEP_ALIVE_S
from webapp.context.app_context import AppContext
from webapp.requests.awaited_answers import store_all
from webapp.requests.stored_requests import cancel_request, find_request, forget_unstored, response_not_found
from webapp.waiting.patience import Connection
from webapp.waiting.token_feed import LiveText
from webapp.waiting.waiting_calls import WaitingSlot

log = structlog.get_logger()


class StoredAnswerStream:
    """Yields the answer of a stored request piece by piece; must be closed, which frees its slot."""

    def __init__(
        self,
        context: AppContext,
        view: RequestView,
        connection: Connection | None,
        slot: WaitingSlot,
        *,
        cancels: bool,
        new: bool,
        changed: threading.Event | None = None,
    ) -> None:
        """Begins a request's stream; holds the slot until it is closed. `changed` is set when `pieces` can go on.

        A `new` request has no text yet. With `cancels`, the request is cancelled if the client disconnects.
        """
        self.view, self._context, self._cancels = view, context, cancels
        self._sent_characters = 0
        self.changed = changed or threading.Event()
        with ExitStack() as opened:
            opened.push(slot)
            self._call = context.waiting_calls.begin(view.request.id, self.changed)
            opened.callback(context.waiting_calls.end, self._call)
            self._text = LiveText(view.request.id, self._call.wake, missed=not new)
            if view.request.status.final:
                self._call.finish(view)
            else:
                context.token_feed.open(self._text)
                opened.callback(context.token_feed.shut, self._text)
            if connection is not None:
                opened.callback(connection.on_close(self._call.leave))
            self._opened = opened.pop_all()

    def pieces(self, wait_s: float = KEEP_ALIVE_S) -> Iterator[str]:
        """Yields the pieces of the answer until it has ended, and an empty piece whenever none has come for `wait_s`.

        A caller that waits for several streams itself gives 0, so that the empty piece comes at once. At the end `view`
        is the ended request. Raises a ClientError if the stream cannot go on to the end: NotAnswered if the text sent
        does not begin the stored answer, as after the loss of a worker whose sampling is not repeatable.
        """
        call = self._call
        while call.over is None:
            woken = wait_s > 0 and call.wait(wait_s)
            piece = self._text.text[self._sent_characters :]
            if piece or not woken:
                self._sent_characters += len(piece)
                yield piece
        if call.over == "left":
            return
        if call.over == "stopping":
            raise Busy("This process of the service is about to stop. Ask again for the rest.")
        if call.view is None:
            raise response_not_found(call.id)
        self.view = call.view
        if call.view.request.output_text is None:
            return
        answer, sent = call.view.request.output_text, self._text.text[: self._sent_characters]
        if not answer.startswith(sent):
            raise NotAnswered(f"{call.id} was generated anew, and differently; retrieve it.", code="stream_diverged")
        if len(answer) > self._sent_characters:
            yield answer[self._sent_characters :]

    @property
    def left(self) -> bool:
        """Returns whether the client has disconnected."""
        return self._call.over == "left"

    def close(self) -> None:
        """Frees the tenant's slot for a waiting call; with `cancels`, cancels the request unless it has ended."""
        self._opened.close()
        if self._call.over == "ended" and self._call.view is not None:
            forget_unstored(self._context, [self._call.view])
        if self._cancels and self._call.over != "ended":
            try:
                cancel_request(self._context, self.view.request.tenant, self.view.request.id)
            except SQLAlchemyError as error:  # the request runs on, and its answer is stored
                log.warning("not cancelled", request=self.view.request.id, error=error)


def submit_and_stream_all(
    context: AppContext, submissions: Sequence[Submission], connection: Connection | None
) -> list[StoredAnswerStream]:
    """Stores one call's requests and begins their streams; raises Busy before one is stored.

    They are cancelled if the client disconnects, unless they are in the background or have an Idempotency-Key.
    """
    first, changed = submissions[0], threading.Event()
    new = first.idempotency_key is None
    cancels = new and not first.body.background
    with ExitStack() as undone:
        slots = [undone.enter_context(context.waiting_calls.reserve_slot(first.tenant)) for _ in submissions]
        streams = []
        for view, slot in zip(store_all(context, submissions), slots, strict=True):
            streams.append(
                StoredAnswerStream(context, view, connection, slot, cancels=cancels, new=new, changed=changed)
            )
            undone.callback(streams[-1].close)
        undone.pop_all()
    return streams


def find_and_stream(context: AppContext, tenant: str, id: str, connection: Connection | None) -> StoredAnswerStream:
    """Streams a stored request's answer from its beginning; raises NotFound, Busy."""
    with ExitStack() as undone:
        slot = undone.enter_context(context.waiting_calls.reserve_slot(tenant))
        found = find_request(context, tenant, id)
        stream = StoredAnswerStream(context, found, connection, slot, cancels=False, new=False)
        undone.pop_all()
    return stream


def shown_progress(context: AppContext, model: str, asked: AskedProgress | None) -> ShownProgress:
    """Returns how a stream of this model's answers tells its progress; the stream begins now."""
    began = monotonic()

    def present(view: RequestView) -> tuple[RequestView, QueuePlace]:
        now = replace(view, now=view.now + timedelta(seconds=monotonic() - began))
        return now, place_in_stream(now, context.queue_snapshot.get())

    return ShownProgress(present, lambda text: context.prompt_limits.of(model).prompt_format.count(text), asked)


def event_stream(streams: Iterable[StoredAnswerStream], events: Callable[[], Iterable[bytes]]) -> Response:
    """Returns the answer that sends these events as they come; closes the streams when it ends or its client is gone.

    It also closes them if making the events fails. Its headers are sent at once: servers send them with the first part
    of the body, even if that part is empty.
    """
    with ExitStack() as closing:
        for stream in streams:
            closing.callback(stream.close)
        parts = chain([b""], events())
        answer = Response(parts, mimetype="text/event-stream", headers={"X-Accel-Buffering": "no"})
        answer.call_on_close(closing.pop_all().close)
    return answer
