"""The planner's process: hosts the loop of its steps, the task `tasks.plan`, the listener for kicks and a heartbeat."""

from functools import partial
from typing import Any

import redis
from celery import signals

from models.session import make_engine
from processes.broker import PING_AFTER_S, BrokerSubscription
from processes.hosted_process import HostedProcess
from processes.listening import Channel, Listener
from processes.signs_of_life import Heartbeat
from tasks.app import app, database_url, host, redis_url, settings
from tasks.bounded_events import BoundedEvents
from tasks.messages import Messages
from tasks.planning.leader import Leader
from tasks.planning.planner_loop import PlannerLoop, PlanQueue
from tasks.planning.planner_rules import planner_rules

leader = Leader(make_engine(database_url, pool_size=1, name="magnus planner"), planner_rules(settings))
messages = Messages(app, redis_url)
queue = PlanQueue()
planner = PlannerLoop(leader, messages, queue, settings.tick_s)


@app.task(name="tasks.plan", send_events=False, Request=BoundedEvents)  # type: ignore[untyped-decorator]  # celery is untyped
def plan() -> None:
    """Lets the planner step at a tick of beat."""
    planner.loop.step()


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _hand_consumer_over(sender: Any, **_: object) -> None:
    queue.consumer = sender


kicks = Channel("kicks", partial(BrokerSubscription, redis_url, messages.kick_channel), (redis.RedisError,))
host(
    HostedProcess(
        [
            planner.loop,
            Listener("kicks", kicks, planner.on_kick, wait_s=PING_AFTER_S),
            Heartbeat("planner", database_url, [planner.loop]),
        ],
        on_stopped=leader.resign,
    )
)
