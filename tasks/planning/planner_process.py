"""The planner's process: hosts the loop of its steps, the task `tasks.plan`, the listener for kicks and a heartbeat."""

import sys
from functools import partial
from typing import Any

import redis
from celery import signals
from sqlalchemy import Engine

from celery_config import TICK_S
from models.connections.session import make_engine
from processes.broker import PING_AFTER_S, BrokerSubscription
from processes.celery.celery_app import CeleryService, on_ticks, run
from processes.celery.messages import Messages
from processes.hosted_process import HostedProcess
from processes.listening import Channel, Listener
from processes.planner_rules import planner_rules
from processes.signs_of_life import Heartbeat
from tasks.planning.leader import Leader
from tasks.planning.planner_loop import PlannerLoop, PlanQueue


def planner_database(url: str) -> Engine:
    """Returns the planner's connection, which looks rows up by their ids.

    Without `by_index`, Postgres kept a plan for a small table that read every row for each of 20,000 ids, over 30 s.
    """
    return make_engine(url, pool_size=1, name="magnus planner", by_index=True)


def planner(service: CeleryService) -> HostedProcess:
    """Makes the process with the planner's loop, its task and its threads."""
    settings = service.settings
    leader = Leader(planner_database(service.database_url), planner_rules(settings))
    messages, queue = Messages(service.app, service.redis_url), PlanQueue()
    steps = PlannerLoop(leader, messages, queue, TICK_S)
    on_ticks(service.app, "plan", steps.loop.step)

    def hand_consumer_over(sender: Any, **_: object) -> None:
        queue.consumer = sender

    signals.worker_ready.connect(hand_consumer_over, weak=False)
    kicks = Channel("kicks", partial(BrokerSubscription, service.redis_url, messages.kick_channel), (redis.RedisError,))
    return HostedProcess(
        [
            steps.loop,
            Listener("kicks", kicks, steps.on_kick, wait_s=PING_AFTER_S),
            Heartbeat("planner", service.database_url, [steps.loop]),
        ],
        on_stopped=leader.resign,
    )


if __name__ == "__main__":
    sys.exit(run(planner, "plan", "planner"))
