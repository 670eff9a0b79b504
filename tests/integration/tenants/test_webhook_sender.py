"""Events arrive signed, at least once, under one id, whatever becomes of senders; slow endpoints hold nobody up."""

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from openai import OpenAI

from models.connections.session import make_engine, make_sessions
from models.webhooks import webhook_deliveries, webhook_endpoints
from models.webhooks.webhook_deliveries import DeliveryResult
from models.webhooks.webhook_endpoints import EVENT_TYPES
from models.webhooks.webhook_tables import WebhookEndpoint
from tasks.chores import webhook_delivery
from tasks.chores.webhook_sender import EACH, EACH_TENANT, WebhookSender
from tests.integration.database_stage import Stage, eventually
from tests.integration.tenants.webhook_receiver import Received, Receiver, running_receiver

ROOT = Path(__file__).parents[3]
KILLS = 10


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as running:
        yield running


@contextmanager
def sending(stage: Stage, private: bool = True) -> Iterator[WebhookSender]:
    """A sender in this process, with a connection of its own."""
    database = make_engine(stage.database.url.render_as_string(hide_password=False), pool_size=1)
    sender = WebhookSender(database, private, look_every_s=0.02)
    sender.start()
    yield sender
    sender.stop()
    database.dispose()


def endpoint(stage: Stage, url: str, tenant: str = "acme") -> WebhookEndpoint:
    with make_sessions(stage.database)() as session:
        return webhook_endpoints.create(session, tenant, url, EVENT_TYPES)


def end(stage: Stage, *ids: str, tenant: str = "acme") -> None:
    """Submits responses in the background and ends them."""
    for one in ids:
        stage.request(f"resp_{one}", tenant=tenant)
    stage.sql(
        "update requests set status = 'completed', finished_at = now(), output_tokens = 1 where finished_at is null"
    )


def undelivered(stage: Stage) -> int:
    return int(stage.sql("select count(*) from webhook_deliveries where delivered_at is null")[0][0])


def last_errors(stage: Stage) -> list[str]:
    return [row[0] for row in stage.sql("select last_error from webhook_deliveries order by id")]


def all_arrived(stage: Stage) -> Callable[[], bool]:
    return lambda: undelivered(stage) == 0


def test_an_event_arrives_and_the_openai_client_unwraps_it(stage: Stage, receiver: Receiver) -> None:
    secret = endpoint(stage, receiver.url).secret
    with sending(stage):
        end(stage, "a")
        eventually(all_arrived(stage))
    (got,) = receiver.received
    event = OpenAI(api_key="k", webhook_secret=secret).webhooks.unwrap(got.body, got.headers)
    assert (event.id, event.type) == ("evt_a", "response.completed")
    assert event.to_dict()["data"] == {"id": "resp_a"}
    assert (got.path, got.headers["content-type"], got.headers["host"]) == (
        "/hook",
        "application/json",
        f"127.0.0.1:{receiver.port}",
    )


def test_what_an_endpoint_refuses_comes_again_under_the_same_id(stage: Stage, receiver: Receiver) -> None:
    endpoint(stage, receiver.url)
    receiver.status = 500
    with sending(stage):
        end(stage, "a")
        eventually(lambda: last_errors(stage) == ["HTTP status 500"])
        ((wait_s, failures),) = stage.sql(
            """select extract(epoch from next_attempt_at - clock_timestamp())::float8, failures
            from webhook_deliveries join webhook_endpoints e on e.id = endpoint_id"""
        )
        assert 0 < wait_s <= webhook_delivery.FIRST_RETRY_S
        assert failures == 1
        receiver.status = 204
        stage.sql("update webhook_deliveries set next_attempt_at = clock_timestamp()")
        eventually(all_arrived(stage))
    assert receiver.event_ids() == ["evt_a", "evt_a"]
    assert stage.sql("select failures from webhook_endpoints") == [(0,)]


def test_a_redirect_is_not_followed(stage: Stage, receiver: Receiver) -> None:
    def redirect(handler: BaseHTTPRequestHandler, _: Received) -> None:
        handler.send_response(307)
        handler.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    receiver.answer = redirect
    endpoint(stage, receiver.url)
    with sending(stage):
        end(stage, "a")
        eventually(lambda: last_errors(stage) == ["HTTP status 307"])
    assert [one.path for one in receiver.received] == ["/hook"]


def test_nothing_is_sent_to_an_address_of_this_network_unless_that_is_allowed(stage: Stage, receiver: Receiver) -> None:
    for host in ("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"):  # the third is an IPv4 address, too
        endpoint(stage, f"http://{host}:{receiver.port}/")
    with sending(stage, private=False):
        end(stage, "a")
        eventually(lambda: None not in last_errors(stage))
    assert set(last_errors(stage)) == {"its address is private, loopback or link-local"}
    assert receiver.received == []


def test_an_endpoint_that_is_away_or_no_web_server_is_tried_again(stage: Stage) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint(stage, f"http://127.0.0.1:{unused.getsockname()[1]}/")
        endpoint(stage, "http://nowhere.invalid/")
        with sending(stage):
            end(stage, "a")
            eventually(lambda: None not in last_errors(stage))
    assert undelivered(stage) == 2
    assert all(error.endswith("no answer") for error in last_errors(stage))


def test_an_endless_answer_is_read_a_little_and_counts_by_its_status(stage: Stage, receiver: Receiver) -> None:
    def endless(handler: BaseHTTPRequestHandler, _: Received) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        while True:  # until the sender closes
            handler.wfile.write(b"x" * 65_536)

    receiver.answer = endless
    endpoint(stage, receiver.url)
    with sending(stage):
        end(stage, "a")
        eventually(all_arrived(stage))


def test_an_endpoint_that_never_answers_does_not_hold_up_the_others(stage: Stage, receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=200) as silent:  # connects, and says nothing
        endpoint(stage, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        endpoint(stage, receiver.url)
        end(stage, *(f"{n}" for n in range(3 * EACH)))
        with sending(stage):
            eventually(lambda: undelivered(stage) == 3 * EACH)
            assert stage.sql("select sum(attempts) from webhook_deliveries where delivered_at is null") == [(EACH,)]
    assert sorted(receiver.event_ids()) == sorted(f"evt_{n}" for n in range(3 * EACH))


def test_tenants_take_turns_whatever_waits_for_one_of_them(stage: Stage) -> None:
    first = [endpoint(stage, f"https://example.com/{n}").id for n in range(6)]
    end(stage, *(f"{n}" for n in range(EACH)))
    other = endpoint(stage, "https://example.org/", tenant="globex").id
    end(stage, *(f"g{n}" for n in range(8)), tenant="globex")
    with stage.database.begin() as connection:
        claim = partial(webhook_deliveries.claim, connection, each=EACH, each_failing=1, claim_s=60.0)
        taken = claim(16, {}, each_tenant=EACH_TENANT)
        assert sorted(Counter(one.endpoint_id in first for one in taken).values()) == [8, 8]
        running = Counter(one.endpoint_id for one in taken)
        assert all(one.endpoint_id != other for one in claim(256, running, each_tenant=EACH_TENANT))
        assert claim(256, dict.fromkeys(first, 16), each_tenant=EACH_TENANT) == []
    assert stage.sql("select count(*) from webhook_deliveries where attempts > 0 and object_id not like 'resp_g%'") == [
        (EACH_TENANT,)
    ]


def test_an_event_is_given_up_after_a_day_and_can_be_sent_again(stage: Stage, receiver: Receiver) -> None:
    endpoint_id = endpoint(stage, receiver.url).id
    receiver.status = 503
    end(stage, "a")
    stage.sql("update webhook_deliveries set event_at = clock_timestamp() - interval '1 day'")
    with sending(stage):
        eventually(lambda: stage.sql("select 1 from webhook_deliveries where next_attempt_at is null"))
        receiver.status = 200
        with make_sessions(stage.database)() as session:
            ((delivery,),) = stage.sql("select id from webhook_deliveries")
            assert webhook_deliveries.redeliver(session, "acme", endpoint_id, delivery) is not None
        eventually(all_arrived(stage))
    assert receiver.event_ids() == ["evt_a", "evt_a"]


def test_two_senders_share_the_work_and_send_nothing_twice(stage: Stage, receiver: Receiver) -> None:
    endpoint(stage, receiver.url)
    end(stage, *(f"{n}" for n in range(100)))
    with sending(stage), sending(stage):
        eventually(all_arrived(stage))
    assert sorted(receiver.event_ids()) == sorted(f"evt_{n}" for n in range(100))


def test_the_result_of_an_attempt_that_another_one_followed_changes_nothing(stage: Stage) -> None:
    endpoint(stage, "https://example.com/")
    end(stage, "a")
    with stage.database.begin() as connection:
        (first,) = webhook_deliveries.claim(connection, 9, {}, each=9, each_failing=9, each_tenant=9, claim_s=0.0)
        (second,) = webhook_deliveries.claim(connection, 9, {}, each=9, each_failing=9, each_tenant=9, claim_s=60.0)
        for claimed, error in ((second, None), (first, "late")):
            late = DeliveryResult(
                claimed.id, claimed.endpoint_id, claimed.attempts, 200, error, None if error is None else 5.0
            )
            webhook_deliveries.write_results(connection, [late], 86_400.0)
    assert undelivered(stage) == 0


def test_deliveries_are_deleted_with_what_they_told_of(stage: Stage) -> None:
    endpoint(stage, "https://example.com/")
    end(stage, "a", "b")
    stage.sql("update webhook_deliveries set event_at = event_at - interval '2 hours' where object_id = 'resp_a'")
    with stage.database.begin() as connection:
        assert webhook_deliveries.delete_old(connection, 3600.0, 100) == 1
    assert stage.sql("select object_id from webhook_deliveries") == [("resp_b",)]


def more_than(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) > count


SENDER = """
import sys
from models.connections.session import make_engine
from tasks.chores import webhook_sender
webhook_sender.CLAIM_S = 0.5  # so that what a killed one had claimed is due soon
webhook_sender.WebhookSender(make_engine(sys.argv[1], pool_size=1), True, look_every_s=0.02).run()
"""


def test_no_event_is_lost_when_senders_are_killed(stage: Stage, receiver: Receiver) -> None:
    endpoint(stage, receiver.url)
    url = stage.database.url.render_as_string(hide_password=False)
    expected = set()
    for kill in range(KILLS):
        ids = [f"{kill}-{n}" for n in range(30)]
        expected |= {f"evt_{one}" for one in ids}
        with subprocess.Popen([sys.executable, "-c", SENDER, url], cwd=ROOT, env=dict(os.environ)) as sender:
            end(stage, *ids)
            eventually(partial(more_than, receiver, len(receiver.received)))  # it has begun to send
            sender.send_signal(signal.SIGKILL)
    with sending(stage):
        eventually(all_arrived(stage))
    assert set(receiver.event_ids()) == expected
