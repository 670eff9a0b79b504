"""Broker and Postgres wiped, stopped, frozen and killed, while requests wait and more are submitted."""

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import httpx
import psutil
import redis

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.recording_client import RecordingClient, Reply, bodies, client_of, pressure, trickle
from benchmarks.chaos.service_under_test import ServiceUnderTest
from benchmarks.harness import in_thread, until

DISPATCHED_WITHIN_S = 10.0  # the promised time until batches start again
REFUSED_WITHIN_S = 3.0  # the promised time until a call is refused
PATIENCE_S = 600.0  # longest wait until a long queue is answered
STOP_AGAIN_S = 0.05  # far below the 2 s between two checks of the supervisor
HEALTHY_WITHIN_S = 1.0  # what counts as "at once" on a machine whose cores are all busy


def broker(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Wipe, freeze, kill and stop the broker with a long queue: dispatch must resume, and accepting must never stop."""
    resumed: dict[str, float] = {}
    with client_of(service) as client:
        client.submit_all(bodies(size.broker_queue, seed=3))
        since = time.time()
        with trickle(client, rate=5.0):  # so that there are batches to dispatch and POSTs to accept
            for how in ("wiped", "frozen", "killed", "stopped"):
                _break_broker(service, how, size.broker_frozen_s)
                resumed[how] = _dispatch_resumed(service)
            accepted_during = client.posted(since, time.time())
        finished_s = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
    name = f"broker wiped, frozen, killed, stopped, {size.broker_queue} queued"
    slowest = max((reply.seconds for reply in accepted_during), default=0.0)
    refused = sum(not 200 <= reply.status < 300 for reply in accepted_during)
    shown = ", ".join(f"{how} {seconds:.1f} s" for how, seconds in resumed.items())
    accepting = f"{refused} of {len(accepted_during)} POSTs refused, slowest {slowest:.2f} s"
    return [
        found.lost_row(name, finished_s),
        found.once_row(name),
        Row("broker: dispatch resumes", "within 10 s", shown, max(resumed.values()) <= DISPATCHED_WITHIN_S),
        Row("broker: accepting never stops", "0 refused, 3 s at most", accepting, not refused and slowest <= 3.0),
    ]


def _break_broker(service: ServiceUnderTest, how: str, frozen_s: float) -> None:
    if how == "wiped":
        with redis.Redis.from_url(service.facts.redis_url) as client:
            client.flushall()
        return
    number = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL, "stopped": signal.SIGTERM}[how]
    process = service.signal("valkey", number)
    if how == "frozen" and process is not None:
        _hold_frozen([process], frozen_s)
        service.thaw()
    elif process is not None:
        service.replaced("valkey", process)


def _dispatch_resumed(service: ServiceUnderTest) -> float:
    """Seconds from now until a worker starts a batch that was sent after now."""
    now = time.time()
    started = "select 1 from batches where sent_at > to_timestamp(:now) and started_at is not null limit 1"
    until(lambda: service.value(started, now=now), 60.0)
    return time.time() - now


def postgres(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Restart, kill and freeze Postgres: calls get 503 during that time, and the rate of answers must return."""
    rows = []
    with client_of(service) as client, pressure(service, client, warm_after=size.settled_after):
        for how in size.postgres_breaks:
            before = service.rate_for(size.window_s)
            began = time.time()
            with Watch(service) as watch:
                _break_postgres(service, how, size.postgres_frozen_s)
            broken_until = time.time()
            time.sleep(size.recovery_s)
            after = service.rate_for(size.window_s)
            share, bound = after / max(before, 1e-9), 0.95 * size.slack
            shown = f"{share:.0%} ({after:.1f} of {before:.1f} answers/s)"
            within = f"at least {bound:.0%} after {size.recovery_s:.0f} s"
            rows.append(Row(f"Postgres {how}: rate", within, shown, share >= bound))
            if how == "frozen":
                rows.append(watch.refusals())
            rows.append(watch.health(how))
            rows.append(_answers_again(how, [*client.posted(began, broken_until), *watch.posted()]))
    finished_s = service.answered_within(PATIENCE_S)
    found = verdict(service, client.accepted)
    name = f"Postgres {', '.join(size.postgres_breaks)}"
    return [*rows, found.lost_row(name, finished_s), found.once_row(name)]


def _break_postgres(service: ServiceUnderTest, how: str, frozen_s: float) -> None:
    if how != "frozen":
        process = service.signal("postgres", signal.SIGKILL if how == "killed" else signal.SIGINT)
        if process is not None:
            service.replaced("postgres", process)
        service.value("select 1")
        return
    postmaster = service.processes()["postgres"]
    _hold_frozen([postmaster, *postmaster.children(recursive=True)], frozen_s)
    service.thaw()


def _hold_frozen(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Keep processes frozen although the supervisor thaws them; it may also replace them."""
    until_s = time.time() + seconds
    while time.time() < until_s:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_AGAIN_S)


def _answers_again(how: str, replies: Sequence[Reply]) -> Row:
    """Make the table row, which holds if all replies were acceptances or 503 while Postgres was unavailable."""
    other = sorted({reply.status for reply in replies if reply.status not in (200, 202, 503)})
    measured = f"others than 200 and 503: {other or 'none'}, of {len(replies)} POSTs"
    ok = bool(replies) and not other
    return Row(f"Postgres {how}: replies meanwhile", "accepted or 503, always a reply", measured, ok)


class Watch:
    """Requests /healthz and posts four times a second, each on its own connections."""

    def __init__(self, service: ServiceUnderTest) -> None:
        self._service = service
        self._healthz_s: list[float] = []
        self._client = RecordingClient(service.url, service.key, timeout_s=15.0)
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        self._stack.enter_context(self._client)
        for work in (self._ask, self._post):
            self._stack.enter_context(in_thread(work))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _ask(self, ended: threading.Event) -> None:
        while not ended.wait(0.25):
            began = time.monotonic()
            try:
                httpx.get(f"{self._service.url}/healthz", timeout=10.0).raise_for_status()
                self._healthz_s.append(time.monotonic() - began)
            except httpx.HTTPError:
                self._healthz_s.append(float("inf"))

    def _post(self, ended: threading.Event) -> None:
        (body,) = bodies(1, seed=6)
        while not ended.wait(0.25):
            self._client.post(body)

    def posted(self) -> Sequence[Reply]:
        """The replies to the client's POSTs."""
        return self._client.replies

    def health(self, how: str) -> Row:
        """Make the table row, which holds if /healthz always answered in time."""
        worst = max(self._healthz_s, default=0.0)
        measured = f"slowest {worst:.2f} s of {len(self._healthz_s)}"
        return Row(f"Postgres {how}: /healthz", "at once (1 s)", measured, worst <= HEALTHY_WITHIN_S)

    def refusals(self) -> Row:
        """Make the table row, which holds if every refusal came in time, as a 503 with Retry-After."""
        refused = [reply for reply in self._client.replies if reply.status not in (200, 202)]
        good = [r for r in refused if r.status == 503 and r.retry_after and r.seconds <= REFUSED_WITHIN_S]
        slowest = max((reply.seconds for reply in refused), default=0.0)
        measured = f"{len(good)} of {len(refused)}, slowest {slowest:.1f} s"
        ok = len(good) == len(refused) > 0
        return Row("Postgres frozen: 503 with Retry-After", "every refusal within 3 s", measured, ok)
