"""The planner's process: one step at beat's ticks (the task `tasks.plan`), at kicks, and by itself when one is due.

A stand-by does not consume the queue `plan`, so that every tick reaches the planner that leads.
"""

from functools import partial
from time import thread_time
from typing import Any

import redis
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from models.planning.leadership import LeadLost
from models.session import make_engine
from processes.broker import PING_AFTER_S, BrokerSubscription
from processes.hosted_process import HostedProcess
from processes.listening import Channel, Listener
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from scheduling.policies.policy_factory import PolicySettings
from tasks.app import app, database_url, host, redis_url, settings
from tasks.messages import Messages
from tasks.planning.leader import Leader
from tasks.planning.plan_queue import PlanQueue
from tasks.planning.planner_rules import PlannerRules
from tasks.planning.step_pacer import StepPacer

# A kick waits at most this long for its step, or STEP_SPACING times the CPU time of the last decision. So under
# constant kicks the planner is idle for seven eighths of the time, for any number of workers. Not tuned.
STEP_INTERVAL_S = 0.02
STEP_SPACING = 8
# While every worker decodes rows that others may join: joins become fewer and larger, and each join costs a message, a
# transaction and a prefill. With ResultWriter's interval it lowered the planner's CPU time from 2.8 to 1.8 ms a request
# (commit ccd7735). The price: a worker whose rows all end meanwhile stays empty for the rest of the interval.
JOINING_INTERVAL_S = 0.06
# Seconds between two steps while anything waits or runs: events without a kick, such as a lost lease or a passed
# deadline, are noticed within this time. Without work beat's ticks are enough. Not tuned.
BUSY_STEP_S = 1.0
# Without a tick for this many times MAGNUS_TICK_S the planner steps by itself, and a stand-by looks whether the lead is
# free. Not tuned.
MISSING_TICKS = 1.5
# After this many ticks without a sign of a predictor requests get their application's mean. With fewer a busy
# predictor, which without beat looks every MISSING_TICKS, would count as dead; more delay requests while there is none.
# Not tuned.
MISSED_TICKS = 2
STOP_WITHIN_S = 5.0  # for the last step; a supervisor waits 10 s, enough to give up the lead as well


class PlannerLoop:
    """The planner's steps: paces them, sends their batches, arranges the next one."""

    def __init__(self, leader: Leader, messages: Messages, queue: PlanQueue) -> None:
        self._leader, self._messages, self._queue = leader, messages, queue
        self._pacer = StepPacer(STEP_INTERVAL_S)
        self._began_s = 0.0  # CPU time of its thread when the running step began
        self._everything_sent = True  # whether the broker took the batches of the last step
        self.loop = Loop(
            "step",
            self._step,
            MISSING_TICKS * settings.tick_s,
            retry_s=BUSY_STEP_S,
            expected=(SQLAlchemyError, LeadLost),
            stop_within_s=STOP_WITHIN_S,
        )

    def _step(self) -> None:
        """Decide once and send the batches; after an error the next step begins a new term of leadership."""
        self._pacer.wait()
        self._began_s = thread_time()
        if self._leader.leads:
            self._messages.clear_kick()
        try:
            self._leader.step(sent=self._everything_sent, send=self._send)
        finally:
            self._queue.set(not self._leader.stands_by)
        self._arrange_next_step()

    def _send(self, batches: list[tuple[int, str]]) -> None:
        self._everything_sent = self._messages.send_batches(batches)
        self._pacer.lengthen(STEP_SPACING * (thread_time() - self._began_s))

    def _arrange_next_step(self) -> None:
        """Step again when a policy wants to be asked, soon while there is work; collect joiners where all can join."""
        due_in_s = self._leader.due_in_s
        if due_in_s is not None:
            self.loop.step_within(min(due_in_s, BUSY_STEP_S))
        elif self._leader.has_work:
            self.loop.step_within(BUSY_STEP_S)
        if due_in_s is None and self._leader.all_joinable:
            self._pacer.lengthen(JOINING_INTERVAL_S)

    def on_kick(self) -> None:
        """Step, unless this process stands by: the leading planner also gets the kick."""
        if self._queue.consumes:
            self.loop.step()


def planner_rules() -> PlannerRules:
    """Return the planner's rules from the settings."""
    return PlannerRules(
        policy=settings.policy,
        settings=PolicySettings(
            max_prompt_tokens=settings.max_prompt_tokens,
            max_output_tokens=settings.max_output_tokens,
            wma_threshold=settings.wma_threshold,
            slice_tokens=settings.slice_tokens,
            background_share=settings.background_share,
        ),
        alive_s=min(settings.lease_s, 8 * settings.heartbeat_s),
        on_time_s=4 * settings.heartbeat_s,
        lease_s=settings.lease_s,
        resend_s=settings.resend_s,
        max_attempts=settings.max_attempts,
        predictor_grace_s=MISSED_TICKS * settings.tick_s,
    )


leader = Leader(make_engine(database_url, pool_size=1, name="magnus planner"), planner_rules())
messages = Messages(app, redis_url)
queue = PlanQueue()
planner = PlannerLoop(leader, messages, queue)


@app.task(name="tasks.plan", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def plan() -> None:
    """One step."""
    planner.loop.step()


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _hand_consumer_over(sender: Any, **_: object) -> None:
    queue.consumer = sender


kicks = Channel("kicks", partial(BrokerSubscription, redis_url, messages.kick_channel), (redis.RedisError,))
host(
    HostedProcess(
        [
            planner.loop,
            Listener("kicks", kicks, lambda _: planner.on_kick(), wait_s=PING_AFTER_S),
            Heartbeat("planner", database_url, lambda: planner.loop.busy_s),
        ],
        on_stopped=leader.resign,
    )
)
