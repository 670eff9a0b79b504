"""Broker and Postgres wiped, stopped, frozen and killed, while requests wait and more are submitted."""

import contextlib
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import httpx
import psutil
import redis

from benchmarks.harness import Row, in_thread, until
from tests.chaos.exactly_once import verdict
from tests.chaos.promised_service import PromisedService
from tests.chaos.recording_client import (
    RecordingClient,
    bodies,
    client_of,
    endless,
    pressure,
    recovery_s,
    settled_after,
    slack,
)

DISPATCHED_WITHIN_S = 10.0  # the promised time until batches start again
REFUSED_WITHIN_S = 3.0  # the promised time until a call is refused
PATIENCE_S = 600.0  # longest wait until a long queue is answered
STOP_AGAIN_S = 0.05  # far below the 2 s between two checks of the supervisor
HEALTHY_WITHIN_S = 1.0  # what counts as "at once" on a machine whose cores are all busy
CUT_SESSION = """select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
    and pid <> pg_backend_pid() and application_name <> 'chaos' order by random() limit 1"""
DISPATCHED = "select 1 from batches where sent_at > to_timestamp(:now) and started_at is not null limit 1"


def broker(service: PromisedService, long: bool) -> Iterator[Row]:
    """Wipe, freeze, kill and stop the broker with a long queue: dispatch must resume, and accepting must never stop."""
    queued, resumed = 5_000 if long else 200, dict[str, float]()
    with client_of(service) as client:
        client.submit_all(bodies(queued, seed=3))
        since = time.time()

        def trickle(ended: threading.Event) -> None:
            """Submit five requests a second, so that there are batches to dispatch and POSTs to accept."""
            for body in endless(4):
                if ended.wait(0.2):
                    return
                client.submit(body)

        with in_thread(trickle):
            for how in ("wiped", "frozen", "killed", "stopped"):
                _break_broker(service, how, 10.0 if long else 3.0)
                now = time.time()
                until(partial(service.value, DISPATCHED, now=now), 60.0)
                resumed[how] = time.time() - now
            meanwhile = client.posted(since, time.time())
        finished_s = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
    yield from found.rows(f"broker wiped, frozen, killed, stopped, {queued} queued", finished_s)
    shown = ", ".join(f"{how} {seconds:.1f} s" for how, seconds in resumed.items())
    yield Row("broker: dispatch resumes", "within 10 s", shown, max(resumed.values()) <= DISPATCHED_WITHIN_S)
    slowest = max((reply.seconds for reply in meanwhile), default=0.0)
    refused = sum(not 200 <= reply.status < 300 for reply in meanwhile)
    shown = f"{refused} of {len(meanwhile)} POSTs refused, slowest {slowest:.2f} s"
    yield Row("broker: accepting never stops", "0 refused, 3 s at most", shown, not refused and slowest <= 3.0)


def _break_broker(service: PromisedService, how: str, frozen_s: float) -> None:
    if how == "wiped":
        with redis.Redis.from_url(service.facts.redis_url) as client:
            client.flushall()
        return
    number = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL, "stopped": signal.SIGTERM}[how]
    process = service.signal("valkey", number)
    if how == "frozen" and process is not None:
        _hold_frozen(service, [process], frozen_s)
    elif process is not None:
        service.replaced("valkey", process)


def postgres(service: PromisedService, long: bool) -> Iterator[Row]:
    """Restart, kill and freeze Postgres: calls get 503 during that time, and the rate of answers must return."""
    window_s, breaks = (20.0, ("restarted", "killed", "frozen")) if long else (6.0, ("killed",))
    with client_of(service) as client, pressure(service, client, warm_after=settled_after(long)):
        for how in breaks:
            before, began = service.rate_for(window_s), time.time()
            healthz_s: list[float] = []
            with client_of(service, timeout_s=15.0) as watching, _asking(service, watching, healthz_s):
                _break_postgres(service, how, 20.0)
            broken_until = time.time()
            time.sleep(recovery_s(long))
            after = service.rate_for(window_s)
            share, bound = after / max(before, 1e-9), 0.95 * slack(long)
            shown, within = f"{share:.0%} ({after:.1f} of {before:.1f} answers/s)", f"after {recovery_s(long):.0f} s"
            yield Row(f"Postgres {how}: rate", f"at least {bound:.0%} {within}", shown, share >= bound)
            if how == "frozen":
                refused = [reply for reply in watching.replies if reply.status not in (200, 202)]
                late = [r for r in refused if r.status != 503 or not r.retry_after or r.seconds > REFUSED_WITHIN_S]
                slowest = max((reply.seconds for reply in refused), default=0.0)
                shown = f"{len(refused) - len(late)} of {len(refused)}, slowest {slowest:.1f} s"
                ok = bool(refused) and not late
                yield Row("Postgres frozen: 503 with Retry-After", "every refusal within 3 s", shown, ok)
            worst = max(healthz_s, default=0.0)
            shown = f"slowest {worst:.2f} s of {len(healthz_s)}"
            yield Row(f"Postgres {how}: /healthz", "at once (1 s)", shown, worst <= HEALTHY_WITHIN_S)
            replies = [*client.posted(began, broken_until), *watching.replies]
            other = sorted({reply.status for reply in replies if reply.status not in (200, 202, 503)})
            shown = f"others than 200 and 503: {other or 'none'}, of {len(replies)} POSTs"
            ok = bool(replies) and not other
            yield Row(f"Postgres {how}: replies meanwhile", "accepted or 503, always a reply", shown, ok)
    finished_s = service.answered_within(PATIENCE_S)
    yield from verdict(service, client.accepted).rows(f"Postgres {', '.join(breaks)}", finished_s)


@contextmanager
def _asking(service: PromisedService, client: RecordingClient, healthz_s: list[float]) -> Iterator[None]:
    """Post and ask for /healthz four times a second, each on its own connections."""
    (body,) = bodies(1, seed=6)

    def post(ended: threading.Event) -> None:
        while not ended.wait(0.25):
            client.post(body)

    def ask(ended: threading.Event) -> None:
        while not ended.wait(0.25):
            began = time.monotonic()
            try:
                httpx.get(f"{service.url}/healthz", timeout=10.0).raise_for_status()
                healthz_s.append(time.monotonic() - began)
            except httpx.HTTPError:
                healthz_s.append(float("inf"))

    with in_thread(post), in_thread(ask):
        yield


def _break_postgres(service: PromisedService, how: str, frozen_s: float) -> None:
    if how == "frozen":
        postmaster = service.processes()["postgres"]
        _hold_frozen(service, [postmaster, *postmaster.children(recursive=True)], frozen_s)
        return
    process = service.signal("postgres", signal.SIGKILL if how == "killed" else signal.SIGINT)
    if process is not None:
        service.replaced("postgres", process)
    service.value("select 1")


def _hold_frozen(service: PromisedService, processes: Sequence[psutil.Process], seconds: float) -> None:
    """Keep processes frozen although the supervisor thaws them; it may also replace them."""
    until_s = time.time() + seconds
    while time.time() < until_s:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_AGAIN_S)
    service.thaw()


def cut_connections(service: PromisedService, long: bool) -> Iterator[Row]:
    """Cut a connection to the API, to Postgres and to the broker each second, while 300 to the API are idle."""
    cut_s, rates, address = 40.0 if long else 6.0, list[float](), urlsplit(service.url)
    where, name = (str(address.hostname), address.port or 80), "connections cut each second, 300 idle"
    with client_of(service) as client, pressure(service, client, warm_after=settled_after(long)):
        for cuts in (False, True, False):
            since, idle = time.time(), [socket.create_connection(where) for _ in range(300 if cuts else 0)]
            while time.time() - since < cut_s:
                if cuts:
                    _cut_one_each(service, where)
                time.sleep(1.0)
            rates.append(service.rate(since, time.time()))
            for connection in idle:
                connection.close()
    finished_s = service.answered_within(PATIENCE_S)
    undisturbed, bound = (rates[0] + rates[2]) / 2, 0.85 * slack(long)
    share = rates[1] / max(undisturbed, 1e-9)
    shown = f"{share:.0%} ({rates[1]:.1f} of {undisturbed:.1f} answers/s)"
    yield Row(f"{name}: rate", f"at least {bound:.0%} of the undisturbed", shown, share >= bound)
    yield from verdict(service, client.accepted).rows(name, finished_s)


def _cut_one_each(service: PromisedService, where: tuple[str, int]) -> None:
    """Reset a half-sent call, and let Postgres and the broker close the connection of one of their clients."""
    with socket.create_connection(where) as call:
        call.sendall(b"POST /v1/responses HTTP/1.1\r\nHost: chaos\r\nContent-Le")
        call.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    service.sql(CUT_SESSION)
    with redis.Redis.from_url(service.facts.redis_url) as client:
        others = [one["addr"] for one in client.client_list() if one["cmd"] != "client|list"]
        with contextlib.suppress(redis.ResponseError):  # it has gone by itself
            client.client_kill(service.random.choice(others))
