"""Inserts requests one group at a time: requests that come while an insert is under way go together in the next one.

So a commit, its wait for the disk and a round trip serve several calls while many come, and a call that comes alone
waits for nothing. Only requests without an Idempotency-Key are grouped: an insert with a key may have to wait for
another transaction with the same key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, Lock

from sqlalchemy.exc import OperationalError

from models.client_requests import RequestView
from models.new_requests import NewRequest

# The most requests and bytes of one group, unless its first request is larger. They bound the time of a statement, for
# which all of the group wait. Not tuned.
MOST_AT_ONCE, MOST_BYTES = 64, 2**20


@dataclass(eq=False, slots=True)
class _Call:
    """A call that waits for its request to be inserted, or for its turn to insert a group."""

    new: NewRequest
    woken: Event
    leads: bool = False
    view: RequestView | None = None
    error: BaseException | None = None


class GroupedInserts:
    """Inserts requests for many calls at once; each call has its own result or error."""

    def __init__(
        self, insert: Callable[[Sequence[NewRequest]], list[RequestView]], event: Callable[[], Event] = Event
    ) -> None:
        """`insert` stores all of the requests that it gets, in their order, or none of them.

        `event` makes the event on which a call waits.
        """
        self._insert, self._event = insert, event
        self._lock = Lock()
        self._waiting: list[_Call] = []  # the first of them leads, if any call leads
        self._inserting = False

    def __len__(self) -> int:
        """Returns the number of calls whose requests will be in one of the next groups."""
        return len(self._waiting)

    def store(self, new: NewRequest) -> RequestView:
        """Inserts a request; raises what its insert raises."""
        call = _Call(new, self._event())
        with self._lock:
            self._waiting.append(call)
            call.leads, self._inserting = not self._inserting, True
        if not call.leads:
            self._wait(call)
        if call.leads:
            self._insert_group()
        if call.error is not None:
            raise call.error
        return call.view or self._insert([new])[0]  # alone if its group was refused, perhaps for another call

    def _wait(self, call: _Call) -> None:
        """Waits for the call's result or turn; a call that ends meanwhile, as its process stops, gives its turn up."""
        try:
            call.woken.wait()
        except BaseException:
            with self._lock:
                if call in self._waiting:
                    self._waiting.remove(call)
            if call.leads:
                self._pass_on(())
            raise

    def _insert_group(self) -> None:
        """Inserts the requests of the call that leads and of those behind it, and lets the next call lead."""
        group = self._take_group()
        try:
            for call, view in zip(group, self._insert([call.new for call in group]), strict=True):
                call.view = view
        except BaseException as error:
            # a refused group stored nothing, so each call tries by itself; after a lost connection, or if this call was
            # ended, the group may be stored all the same
            refused = isinstance(error, Exception) and not isinstance(error, OperationalError)
            if not refused or len(group) == 1:
                for call in group:
                    call.error = error
        finally:
            self._pass_on(group)

    def _take_group(self) -> list[_Call]:
        with self._lock:
            size, number = 0, 0
            for call in self._waiting[:MOST_AT_ONCE]:
                size += call.new.size_bytes
                if number and size > MOST_BYTES:
                    break
                number += 1
            group, self._waiting = self._waiting[:number], self._waiting[number:]
        return group

    def _pass_on(self, group: Sequence[_Call]) -> None:
        with self._lock:
            following = self._waiting[:1]
            for call in following:
                call.leads = True
            self._inserting = bool(following)
        for call in (*group, *following):
            call.woken.set()
