"""Messages on a real broker: kicks become one, batches reach their worker's queue, a dead broker blocks no sender."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from time import monotonic

import redis
from celery import Celery
from kombu import Queue

from celery_config import EXCHANGE, celery_config, gpu_queue
from processes.broker import BrokerSubscription
from processes.celery.messages import NO_BATCH, Messages
from processes.listening import Channel, Listener

INSTALLATION = "a"


def messages(redis_url: str, installation: str = INSTALLATION) -> Messages:
    app = Celery("test")
    app.conf.update(celery_config(redis_url, tick_s=0.1, installation=installation))
    return Messages(app, redis_url)


def queued(redis_url: str, queue: str) -> int:
    with redis.Redis.from_url(redis_url) as client:
        return int(client.llen(f"magnus-{INSTALLATION}:{queue}"))


@contextmanager
def heard(redis_url: str, installation: str = INSTALLATION) -> Iterator[Callable[[], int]]:
    """The number of kicks received since the start; all kicks that this thread sent before are counted."""
    channel, last = f"magnus-{installation}:kicks", "no kick"
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(channel)
        subscription.get_message(timeout=20)  # the confirmation of the subscription
        came: list[str] = []

        def count() -> int:
            client.publish(channel, last)
            while (message := subscription.get_message(timeout=20)) is not None and message["data"] != last.encode():
                came.append(message["channel"])
            return len(came)

        yield count


def test_many_kicks_before_a_step_are_one_message(redis_url: str):
    kicks = messages(redis_url)
    with heard(redis_url) as kicks_heard:
        for _ in range(100):
            kicks.kick_planner()
        assert kicks_heard() == 1


def test_a_kick_for_a_request_that_should_not_wait_is_not_held_up_by_another(redis_url: str):
    kicks = messages(redis_url)
    with heard(redis_url) as kicks_heard:
        kicks.kick_planner()
        kicks.kick_planner(soon=True)
        kicks.kick_planner(soon=True)
        assert kicks_heard() == 2
        kicks.clear_kick()
        kicks.kick_planner(soon=True)
        assert kicks_heard() == 3


def kick_listener(redis_url: str, kicks: Messages, steps: SimpleQueue[None]) -> Listener[bytes]:
    """A listener for kicks as the planner makes it."""
    subscribe = partial(BrokerSubscription, redis_url, kicks.kick_channel)
    return Listener("kicks", Channel("kicks", subscribe, (redis.RedisError,)), lambda _: steps.put(None), wait_s=0.1)


def test_a_planner_steps_at_each_kick_and_when_it_begins_to_listen(redis_url: str):
    kicks, steps = messages(redis_url), SimpleQueue[None]()
    listener = kick_listener(redis_url, kicks, steps)
    listener.start()
    steps.get(timeout=20)
    kicks.kick_planner()
    steps.get(timeout=20)
    kicks.clear_kick()
    kicks.kick_planner()
    steps.get(timeout=20)
    listener.stop()


def test_a_planner_that_the_broker_dropped_listens_again(redis_url: str):
    kicks, steps = messages(redis_url), SimpleQueue[None]()
    listener = kick_listener(redis_url, kicks, steps)
    listener.start()
    steps.get(timeout=20)
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(_type="pubsub")
    steps.get(timeout=20)  # the subscription is new, so that kicks may have been missed, as at the beginning
    kicks.kick_planner()
    steps.get(timeout=20)
    listener.stop()


def test_each_batch_goes_to_its_workers_own_queue(redis_url: str):
    messages(redis_url).send_batches([(1, "w1"), (2, "w2"), (3, "w1")])
    assert (queued(redis_url, gpu_queue("w1")), queued(redis_url, gpu_queue("w2"))) == (2, 1)


def test_a_batchs_message_is_the_one_that_celery_would_send(redis_url: str):
    app, queue = Celery("test"), gpu_queue("w1")
    app.conf.update(celery_config(redis_url, tick_s=0.1, installation=INSTALLATION))
    app.send_task("tasks.serve", args=[7], queue=Queue(queue, EXCHANGE, routing_key=queue), ignore_result=True)
    Messages(app, redis_url).send_batches([(7, "w1")])
    with redis.Redis.from_url(redis_url) as client:
        ours, celerys = (json.loads(one) for one in client.lrange(f"magnus-{INSTALLATION}:{queue}", 0, -1))
    for one in (ours, celerys):
        assert one["properties"].pop("delivery_tag")
        assert one["headers"]["id"] == one["headers"]["root_id"] == one["properties"].pop("correlation_id")
        one["body"] = json.loads(base64.b64decode(one["body"]))
        for drawn in ("id", "root_id"):
            one["headers"].pop(drawn)
        one["properties"].pop("reply_to")
    assert ours == celerys


def test_a_wiped_broker_takes_messages_as_before(redis_url: str):
    sender = messages(redis_url)
    sender.send_batches([(1, "w1")])
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    sender.send_batches([(2, "w1")])
    with heard(redis_url) as kicks_heard:
        sender.kick_planner()
        assert (kicks_heard(), queued(redis_url, gpu_queue("w1"))) == (1, 1)


def test_without_a_broker_nothing_is_raised_and_little_time_is_lost():
    sender = messages("redis://127.0.0.1:1/0")
    started = monotonic()
    sender.kick_planner()
    sender.clear_kick()
    sender.send_batches([(1, "w1"), (2, "w1")])
    assert monotonic() - started < 10
    assert "127.0.0.1:1" in (sender.broker_error or "")


def test_installations_on_one_redis_do_not_hear_each_other(redis_url: str):
    with heard(redis_url) as kicks_heard:
        messages(redis_url, "b").kick_planner()
        messages(redis_url, "b").send_batches([(1, "w1")])
        assert (kicks_heard(), queued(redis_url, gpu_queue("w1"))) == (0, 0)
        messages(redis_url).kick_planner()
        assert kicks_heard() == 1


def test_probes_to_a_worker_that_reads_nothing_do_not_pile_up(redis_url: str):
    sender = messages(redis_url)
    for _ in range(50):
        sender.send_batches([(NO_BATCH, "unreachable")])
    assert queued(redis_url, gpu_queue("unreachable")) == 1


def test_a_broker_that_refuses_writes_is_known_by_its_own_words_before_anything_is_lost(redis_url: str):
    sender = messages(redis_url)
    sender.clear_kick()
    assert sender.broker_error is None
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            sender.clear_kick()
            assert sender.broker_error == "command not allowed when used memory > 'maxmemory'."
        finally:
            client.config_set("maxmemory", 0)
