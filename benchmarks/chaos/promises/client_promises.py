"""Slow, hostile and unlucky clients: cut connections, idle and half-sent ones, hostile requests, a canary text."""

import contextlib
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis
from sqlalchemy import text

from benchmarks.chaos.exactly_once import verdict
from benchmarks.chaos.promise_rows import Row, Size
from benchmarks.chaos.receiver_and_proxy import CuttableProxy
from benchmarks.chaos.recording_client import RecordingClient, Reply, bodies, client_of, in_background, pressure
from benchmarks.chaos.servers import own_servers
from benchmarks.chaos.service_under_test import ServiceUnderTest, service_under_test
from benchmarks.harness import in_thread, percentile

WORDS = "apple river cloud stone"
SAMPLING: list[dict[str, Any]] = [
    *({"temperature": value} for value in (1e-38, 1e-45, 5e-324, 1e-300, 2.0, 1e308, -1.0, float("nan"))),
    *({"temperature": 1.0, "top_p": value} for value in (1e-38, 5e-324, 0.0, 1.0, 1.0000001, -0.5)),
    {"temperature": 1e-38, "top_p": 1e-38},
    {"temperature": 2.0, "top_p": 5e-324},
    *({"max_output_tokens": value} for value in (0, 1, 1024, 10**9, 2**63, -1, 1.5)),
]
OURS: list[dict[str, Any]] = [
    *({"top_k": value} for value in (1, 2**31 - 1, 2**31, -1)),
    *({"seed": value} for value in (0, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63))),
    *({"stop": value} for value in (["\0"], ["\ud800"], [""], [" "], ["e", "a", "o", "i"], ["x" * 5000], [5])),
    *({"deadline_s": value} for value in (1e-9, 5e-324, 1e300, 0, -1, float("inf"))),
    *({"priority": value} for value in (100, -100, 10**12)),
]
TEXTS = [
    "\0",
    "\ud800 lone",
    "שלום עולם " * 60,
    "\u202e" + "مرحبا " * 100,
    "👩‍👩‍👧‍👦🏳️‍🌈" * 40,
    "e" + "\u0301" * 500,
    "{" * 900,
    "</s><|im_end|>\n" * 40,
    "a" * 200_000,
    "\n" * 50 + "x",
]


def hostile_bodies() -> list[dict[str, Any]]:
    """List hostile requests: each value in an otherwise ordinary request, then texts, applications and shapes."""
    plain = {"input": WORDS, "instructions": "Repeat the text."}
    deep: Any = "x"
    for _ in repeat(None, 400):
        deep = [deep]
    return [
        *({**plain, **values} for values in SAMPLING),
        *({**plain, "temperature": 1.0, "magnus": values} for values in OURS),
        *({**plain, "input": text} for text in TEXTS),
        *({**plain, "instructions": text} for text in TEXTS),
        *({**plain, "metadata": {"application": text[:500]}} for text in TEXTS),
        {**plain, "input": deep},
        {**plain, "input": []},
        {**plain, "model": "\ud800"},
        {**plain, "metadata": deep},
    ]


IDLE, HALF_SENT = 300, 64
POST_S = 0.1  # the promised P99 of POSTs
POST_IN_SHORT_S = 1.0  # the most of any POST in the short form; one that waits for an idle connection takes longer
PATIENCE_S = 180.0


def idle_connections(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Measure how long POSTs take while 300 connections are idle and 64 have sent half a header."""
    count, rate = round(10 * size.idle_s), 10.0
    with client_of(service, timeout_s=5.0) as client:
        client.submit_all(bodies(20, seed=7))
        began = time.time()
        client.submit_all(bodies(count, seed=8), rate)
        held_since = time.time()
        with held_connections(service.url):
            client.submit_all(bodies(count, seed=9), rate, patience_s=1.0)  # late replies count, without retries
        # A short form's slowest call tells what the tests beside it do, so that its median is judged.
        share = 0.99 if size.slack == 1.0 else 0.5
        alone = _posting_s(client.posted(began, held_since), share)
        held = client.posted(held_since, time.time())
        beside = _posting_s(held, share)
        refused = sum(reply.status not in (200, 202) for reply in held)
        service.answered_within(PATIENCE_S)
    measured = f"{1000 * beside:.0f} ms ({1000 * alone:.0f} ms without them), {refused} of {len(held)} refused"
    promise = f"{IDLE} idle and {HALF_SENT} half-sent connections: P{100 * share:.0f} of POST"
    rows = [Row(promise, f"under {1000 * POST_S:.0f} ms, 0 refused", measured, beside < POST_S and not refused)]
    if share < 0.99:
        slowest, most = _posting_s(held, 1.0), POST_IN_SHORT_S
        rows.append(Row(f"{promise}: the slowest", f"under {most:g} s", f"{slowest:.3f} s", slowest < most))
    return rows


def _posting_s(replies: list[Reply], share: float) -> float:
    return percentile([reply.seconds for reply in replies], share, "inverted_cdf") or float("inf")


@contextmanager
def held_connections(url: str, idle: int = IDLE, half_sent: int = HALF_SENT) -> Iterator[None]:
    """Hold `idle` and `half_sent` connections; opens a connection again if the server closes it."""
    address = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
    header = b"POST /v1/responses HTTP/1.1\r\nHost: chaos\r\nContent-Le"

    def hold(ended: threading.Event) -> None:
        held: dict[int, socket.socket] = {}
        while not ended.is_set():
            for number in range(idle + half_sent):
                with contextlib.suppress(OSError):
                    if number in held:
                        if not _closed(held[number]):
                            continue
                        held.pop(number).close()
                    held[number] = socket.create_connection(address, timeout=5.0)
                    held[number].sendall(header if number >= idle else b"")
            ended.wait(0.5)
        for connection in held.values():
            connection.close()

    with in_thread(hold):
        time.sleep(1.0)
        yield


def _closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1024) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def cut_connections(directory: Path, size: Size) -> list[Row]:
    """Cut a connection of clients, database and broker each second while 300 are idle; compares the rates."""
    with ExitStack() as stack:
        servers = stack.enter_context(own_servers(directory))
        postgres = stack.enter_context(CuttableProxy("", path=servers.postgres_socket).running())
        broker = stack.enter_context(CuttableProxy("127.0.0.1", servers.redis_port).running())
        environment = servers.behind(postgres.port, broker.port)
        service = stack.enter_context(service_under_test(directory / "state", environment=environment))
        port = urlsplit(service.url).port
        web = stack.enter_context(CuttableProxy("127.0.0.1", port).running())
        client = stack.enter_context(RecordingClient(f"http://127.0.0.1:{web.port}", service.key))
        with pressure(service, client, warm_after=size.settled_after):
            rates = []
            for cut in (False, True, False):
                since = time.time()
                with held_connections(service.url, half_sent=0) if cut else contextlib.nullcontext():
                    while time.time() - since < size.cut_s:
                        for proxy in (postgres, broker, web) if cut else ():
                            proxy.cut_one()
                        time.sleep(1.0)
                rates.append(service.rate(since, time.time()))
        finished_s = service.answered_within(PATIENCE_S)
        found = verdict(service, client.accepted)
        cuts = postgres.cuts + broker.cuts + web.cuts
    undisturbed, bound = (rates[0] + rates[2]) / 2, 0.85 * size.slack
    share = rates[1] / max(undisturbed, 1e-9)
    shown = f"{share:.0%} ({rates[1]:.1f} of {undisturbed:.1f} answers/s, {cuts} cuts)"
    name = "connections cut each second, 300 idle"
    return [
        Row(f"{name}: rate", f"at least {bound:.0%} of the undisturbed", shown, share >= bound),
        found.lost_row(name, finished_s),
        found.once_row(name),
    ]


def hostile(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Send hostile among ordinary requests under several policies: only the hostile ones may fail."""
    rows = []
    before = service.value("select value->>'name' from service_state where name = 'policy'")
    for policy in size.hostile_policies:
        _put_in_force(service, policy)
        with client_of(service) as client, client_of(service) as attacker:
            with in_background(client, bodies(96, seed=10)):
                for body in hostile_bodies():
                    attacker.submit_once(body)
            took = service.answered_within(PATIENCE_S)
            ordinary, theirs = verdict(service, client.accepted), verdict(service, attacker.accepted)
            broken = sorted({r.status for r in attacker.replies if not 200 <= r.status < 500})
        measured = (
            f"{ordinary.completed} of {ordinary.accepted} ordinary answered, most attempts {ordinary.most_attempts}; "
            f"hostile: {len(attacker.replies) - theirs.accepted} refused, {theirs.completed} answered, "
            f"{theirs.failed} failed, {theirs.missing} stuck, replies out of place: {broken or 'none'}"
        )
        ok = ordinary.completed == ordinary.accepted > 0 and ordinary.most_attempts == 1
        ok = ok and not broken and not theirs.missing and took is not None
        bound = "all ordinary answered at their first attempt"
        rows.append(Row(f"hostile requests among ordinary ones, {policy}", bound, measured, ok))
    _put_in_force(service, before or "fusion")
    return rows


def _put_in_force(service: ServiceUnderTest, policy: str) -> None:
    service.sql(
        """insert into service_state (name, value) values ('policy', jsonb_build_object('name', cast(:name as text)))
        on conflict (name) do update set value = excluded.value, updated_at = clock_timestamp()""",
        name=policy,
    )
    time.sleep(1.0)


def canary(service: ServiceUnderTest, size: Size) -> list[Row]:
    """Look for the text of a prompt in logs, metrics, messages and Flower's pages while processes break."""
    word = f"canary{uuid.uuid4().hex}"
    messages: list[str] = []
    with redis.Redis.from_url(service.facts.redis_url) as broker, broker.monitor() as monitor:
        ended = threading.Event()

        def listen() -> None:
            with contextlib.suppress(Exception):  # reading ends with an error when the connection is closed below
                for command in monitor.listen():
                    messages.append(str(command))
                    if ended.is_set():
                        return

        threading.Thread(target=listen, daemon=True).start()
        with client_of(service) as client:
            texts = [
                {**body, "input": f"{word} {body['input']}", "instructions": f"{body['instructions']} {word}"}
                for body in [*bodies(60, seed=11), *hostile_bodies()]
                if isinstance(body.get("input"), str) and isinstance(body.get("instructions", ""), str)
                for body in [{"instructions": "", **body}]
            ]
            with in_background(client, texts, rate=15.0):
                time.sleep(1.0)
                _cancel_statements(service, seconds=3.0)
                for kind in ("worker-1", "postgres", "predictor"):
                    service.signal(kind, signal.SIGKILL)
                    time.sleep(1.0)
            service.answered_within(PATIENCE_S)
        ended.set()
    places = {f"logs/{path.name}": path.read_text(errors="replace") for path in (service.state_dir / "logs").iterdir()}
    places |= {path.name: path.read_text(errors="replace") for path in service.state_dir.glob("*.json")}
    places |= {"valkey's file": _text_below(service.state_dir / "valkey"), "messages": "\n".join(messages)}
    places["metrics"] = httpx.get(f"{service.url}/metrics").text
    credentials = (service.facts.dashboard_user, service.facts.dashboard_password)
    for page in ("workers", "tasks", "broker", "api/tasks", "metrics"):
        with contextlib.suppress(httpx.HTTPError):
            places[f"Flower's {page}"] = httpx.get(f"{service.facts.flower_url}/{page}", auth=credentials).text
    found = sorted(place for place, content in places.items() if word in content)
    measured = f"in {found or 'none'} of {len(places)} places, {len(messages)} messages heard"
    return [Row("canary text outside the database", "nowhere", measured, not found and bool(messages))]


def _cancel_statements(service: ServiceUnderTest, seconds: float) -> None:
    """Lock the table of requests and cancel all statements that wait for it, some of which have prompts."""
    with service.database.begin() as connection:
        connection.execute(text("lock table requests in access exclusive mode"))
        for _ in range(round(seconds / 0.5)):
            time.sleep(0.5)
            service.sql("select pg_cancel_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'")


def _text_below(directory: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file())
