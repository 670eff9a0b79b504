"""Decides when the planner steps: at ticks, at kicks, and when a policy asks for it. Pauses let kicks share a step.

A stand-by does not consume the queue `plan`, so that every tick reaches the planner that leads.
"""

from collections.abc import Callable, Collection
from threading import Event
from time import monotonic, thread_time
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from models.planning.leadership import LeadLost
from processes.celery.messages import SOON, Messages
from processes.loop import Loop
from tasks.planning.leader import Leader

# Two steps begin at least STEP_INTERVAL_S apart, or STEP_SPACING times the CPU time of the last decision. So kicks that
# keep coming leave the planner idle for nine tenths of the time, however many workers there are. The pause is at most
# BUSY_STEP_S, because a step that fetches thousands of requests is rare. A kick for a request that is no
# background work ends a pause longer than LONG_PAUSE_S. Not tuned.
STEP_INTERVAL_S = 0.02
STEP_SPACING = 10
LONG_PAUSE_S = 0.25
# Steps are this far apart while every worker decodes rows that others may join. Joins then become fewer and larger, and
# each join costs a message, a transaction and a prefill. With ResultWriter's interval this lowered the planner's CPU
# time from 2.8 to 1.8 ms a request (commit ccd7735). The price is that a worker whose rows all end meanwhile stays
# empty for the rest of the interval.
JOINING_INTERVAL_S = 0.06
# The interval is longer where the planner's steps are costly, as beside workers on the same cores: JOINING_SPACING
# times a step's CPU time, but at most JOINING_STEPS decoding steps, because rows end meanwhile. With 26 million
# parameters on two cores, 25 times instead of 10 lowered the control plane's CPU time from 13.4 to 10.3 ms a request,
# and joins from 16 to 8 a second; 40 times saved no more. Without the bound the bundled model, whose rows live for a
# tenth of a second, lost 7 % of its throughput.
JOINING_SPACING, JOINING_STEPS = 25, 4
# Two steps are at most this far apart while anything waits or runs, so that events without a kick, such as a lost lease
# or a passed deadline, are found within this time. Without work, beat's ticks are enough. Not tuned.
BUSY_STEP_S = 1.0
# After this many tick intervals without a tick the planner steps by itself, and a stand-by looks whether the lead is
# free. Not tuned.
MISSING_TICKS = 1.5
STOP_WITHIN_S = 5.0  # seconds for the last step; a supervisor waits 10 s, which leaves time to give up the lead
QUEUE = "plan"


class PlanQueue:
    """Switches whether this process consumes the queue of ticks; any thread may call `set`."""

    def __init__(self) -> None:
        self.consumer: Any = None  # celery.worker.consumer.Consumer, which is untyped; set once Celery has made it
        self._consumes = True  # a Celery worker consumes its queues when it starts

    @property
    def consumes(self) -> bool:
        """Whether this process consumes the queue, or soon will."""
        return self._consumes

    def set(self, consume: bool) -> None:
        """Lets Celery's own thread begin or stop consuming the queue; returns before that is done."""
        if self.consumer is None or consume == self._consumes:
            return
        self._consumes = consume
        change = self.consumer.add_task_queue if consume else self.consumer.cancel_task_queue
        self.consumer.call_soon(change, QUEUE)


def pause_s(cpu_s: float, shortest_step_s: float | None) -> float:
    """Returns the seconds from the beginning of a step to that of the next one; `cpu_s` is the step's CPU time.

    `shortest_step_s` is the field of `Outlook`.
    """
    joining_s = min(JOINING_SPACING * cpu_s, JOINING_STEPS * (shortest_step_s or 0.0))
    return min(BUSY_STEP_S, max(STEP_SPACING * cpu_s, joining_s))


class StepPacer:
    """Makes steps begin at least `interval_s` seconds after each other, also after a step that failed."""

    def __init__(
        self,
        interval_s: float,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._woken = Event()
        self._interval_s, self._clock, self._sleep = interval_s, clock, sleep or self._woken.wait
        self._began_at = self._next_at = 0.0
        self._hurries, self._may_hurry = False, True  # a step may be hurried after a step that was not

    def wait(self) -> None:
        """Sleeps until the next step may begin."""
        while (left_s := self._begins_at - self._clock()) > 0:
            self._sleep(left_s)
            self._woken.clear()
        self._began_at = self._clock()
        self._hurries, self._may_hurry = False, self._began_at >= self._next_at
        self._next_at = self._began_at + self._interval_s

    def lengthen(self, interval_s: float) -> None:
        """Delays only the next step, until `interval_s` seconds after the last step began."""
        self._next_at = max(self._next_at, self._began_at + interval_s)

    def hurry(self) -> None:
        """Lets the next step begin after the pacer's own `interval_s`, unless the last step was hurried, too."""
        self._hurries = True
        self._woken.set()

    @property
    def pause_s(self) -> float:
        """The seconds from the beginning of the last step to that of the next one, unless it is hurried."""
        return self._next_at - self._began_at

    @property
    def _begins_at(self) -> float:
        return self._began_at + self._interval_s if self._hurries and self._may_hurry else self._next_at


class PlannerLoop:
    """Runs the planner's steps: paces them, sends their batches, arranges the next one."""

    def __init__(self, leader: Leader, messages: Messages, queue: PlanQueue, tick_s: float) -> None:
        """`tick_s` is the interval of beat's ticks."""
        self._leader, self._messages, self._queue = leader, messages, queue
        self._pacer = StepPacer(STEP_INTERVAL_S)
        self._began_s = 0.0  # CPU time of the loop's thread when the running step began
        self.loop = Loop(
            "step",
            self._step,
            MISSING_TICKS * tick_s,
            retry_s=BUSY_STEP_S,
            expected=(SQLAlchemyError, LeadLost),
            stop_within_s=STOP_WITHIN_S,
        )

    def _step(self) -> None:
        """Decides once and sends the batches; after an error the next step begins a new term of leadership."""
        self._pacer.wait()
        self._began_s = thread_time()
        if self._leader.leads:
            self._messages.clear_kick()
        try:
            self._leader.step(broker_error=self._messages.broker_error, send=self._send)
        finally:
            self._queue.set(not self._leader.stands_by)
        self._arrange_next_step()

    def _send(self, batches: list[tuple[int, str]]) -> None:
        self._messages.send_batches(batches)
        outlook = self._leader.outlook
        if not outlook.unfinished:
            self._pacer.lengthen(pause_s(thread_time() - self._began_s, outlook.shortest_step_s))

    def _arrange_next_step(self) -> None:
        """Schedules the next step for when a policy wants to be asked or work needs it; lets joining rows collect."""
        outlook = self._leader.outlook
        if outlook.unfinished:
            self.loop.step_within(0.0)
        elif outlook.due_in_s is not None:
            self.loop.step_within(min(outlook.due_in_s, BUSY_STEP_S))
        elif outlook.has_work:
            self.loop.step_within(BUSY_STEP_S)
        if not outlook.unfinished and outlook.due_in_s is None and outlook.shortest_step_s is not None:
            self._pacer.lengthen(JOINING_INTERVAL_S)

    def on_kick(self, kicks: Collection[bytes] = ()) -> None:
        """Lets the loop's thread step, unless this process stands by: the planner that leads gets the same kick.

        The decisions about much background work are costly: the pauses after them are long and would delay others.
        A kick for another request ends every second pause: a planner then works for at most a fifth of the time.
        """
        if self._queue.consumes:
            if SOON in kicks and (self._leader.outlook.serves_background or self._pacer.pause_s > LONG_PAUSE_S):
                self._pacer.hurry()
            self.loop.step_within(0.0)
