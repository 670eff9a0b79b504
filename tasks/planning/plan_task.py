"""The task `tasks.plan`: one step of the planner at beat's ticks, when a process kicks, and by itself when one is due.

A stand-by does not consume the queue `plan`, so that every tick reaches the planner that leads.
"""

from functools import cache
from time import thread_time
from typing import Any

import structlog
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from models.planning.leadership import LeadLost
from models.session import make_engine
from processes import startup_objects
from scheduling.policies.policy_factory import PolicySettings
from tasks.app import app, database_url, redis_url, settings
from tasks.channel_listener import ChannelListener
from tasks.liveness.heartbeat import Heartbeat
from tasks.liveness.pulse import Pulse
from tasks.liveness.regular_work import RegularWork
from tasks.messages import Messages
from tasks.planning.leader import Leader
from tasks.planning.plan_queue import PlanQueue
from tasks.planning.planner_rules import PlannerRules
from tasks.planning.step_pacer import StepPacer

# A kick waits at most this long for its step, or STEP_SPACING times as long as the last decision took in CPU time. So
# kicks that keep coming leave the planner idle for seven eighths of the time, however many workers there are. Not
# tuned.
STEP_INTERVAL_S = 0.02
STEP_SPACING = 8
# While every worker decodes rows that others may join: joins become fewer and larger, and each join costs a message, a
# transaction and a prefill. With ResultWriter's interval it lowered the planner's CPU time from 2.8 to 1.8 ms a request
# (commit ccd7735). The price: a worker whose rows all end meanwhile stays empty for what is left of the interval.
JOINING_INTERVAL_S = 0.06
# Between two steps while anything waits or runs: what nobody kicks for, such as a lost lease or a deadline that has
# passed, is found so soon. Without work beat's ticks are enough. Not tuned.
BUSY_STEP_S = 1.0
# Of MAGNUS_TICK_S: without a tick for so long the planner steps by itself, a stand-by looks whether the lead is free.
# Not tuned.
MISSING_TICKS = 1.5
# So many ticks without a sign of a predictor, and requests get their application's mean. Fewer take a busy predictor
# for a dead one, which without beat looks every MISSING_TICKS; more delay requests while there is none. Not tuned.
MISSED_TICKS = 2
STOP_WITHIN_S = 5.0  # for the last step; with the time to give up the lead below a supervisor's patience of 10 s

log = structlog.get_logger()


@cache
def leader() -> Leader:
    """This process's candidate for the lead."""
    rules = PlannerRules(
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
    return Leader(make_engine(database_url, pool_size=1, name="magnus planner"), rules)


@cache
def messages() -> Messages:
    """This process's connection to the broker."""
    return Messages(app, redis_url)


@cache
def heartbeat() -> Heartbeat:
    """This process's heartbeat."""
    return Heartbeat("planner", database_url, lambda: regular_steps.busy_s)


pacer = StepPacer(STEP_INTERVAL_S)
consumption = PlanQueue()
began_s = 0.0  # of its thread's CPU time, the step that runs
everything_sent = True  # whether the broker took the batches of the last step


def step() -> None:
    """Decide once and send the batches; an error is logged, and the next step begins a new term of leadership."""
    global began_s
    pacer.wait()
    began_s = thread_time()
    if leader().leads:
        messages().clear_kick()
    try:
        leader().step(sent=everything_sent, send=_send)
    except (SQLAlchemyError, LeadLost) as error:
        log.error("step failed", error=str(error))
        return regular_steps.work_within(BUSY_STEP_S)
    except Exception:
        log.exception("step failed")
        return regular_steps.work_within(BUSY_STEP_S)
    finally:
        consumption.set(not leader().stands_by)
    _arrange_next_step(leader())


regular_steps = RegularWork("plan", step, MISSING_TICKS * settings.tick_s)


@app.task(name="tasks.plan", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def plan() -> None:
    """One step."""
    regular_steps()


def _send(batches: list[tuple[int, str]]) -> None:
    global everything_sent
    everything_sent = messages().send_batches(batches)
    pacer.lengthen(STEP_SPACING * (thread_time() - began_s))


def _arrange_next_step(leader: Leader) -> None:
    """Step again when a policy wants to be asked, soon while there is work; let joiners collect where all can join."""
    if leader.due_in_s is None and leader.all_joinable:
        pacer.lengthen(JOINING_INTERVAL_S)
    if leader.due_in_s is not None:
        regular_steps.work_within(min(leader.due_in_s, BUSY_STEP_S))
    elif leader.has_work:
        regular_steps.work_within(BUSY_STEP_S)


def _on_kick() -> None:
    """A stand-by leaves kicks to the planner that leads."""
    if consumption.consumes:
        regular_steps()


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _start(sender: Any, **_: object) -> None:
    consumption.consumer = sender
    regular_steps.start()
    # kicks that came before it listened were not heard
    ChannelListener("kicks", redis_url, messages().kick_channel, lambda _: _on_kick(), on_listening=_on_kick).start()
    Pulse(lambda: regular_steps.works).start()
    heartbeat().start()
    startup_objects.freeze()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _resign(**_: object) -> None:
    regular_steps.stop(STOP_WITHIN_S)
    leader().resign()
    heartbeat().stop()
