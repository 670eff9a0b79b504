"""The clients of the comparison: when they ask, how many at once, and what they time."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.outside_engines.open_loop import Target, replay
from cli.demo.demo_workload import DemoArrival, RealRequest

Json = dict[str, Any]


class Together:
    """Answers nobody until `at_once` calls wait; notes the bodies, and the most calls that waited at once."""

    def __init__(self, at_once: int) -> None:
        self.bodies: list[Json] = []
        self.most = self._now = 0
        self._barrier = threading.Barrier(at_once)
        self._lock = threading.Lock()

    def answer(self, body: Json) -> Json:
        with self._lock:
            self.bodies.append(body)
            self._now += 1
            self.most = max(self.most, self._now)
        self._barrier.wait(timeout=30)
        with self._lock:
            self._now -= 1
        content = body["messages"][-1]["content"]
        return {"choices": [{"message": {"content": content.upper()}}], "usage": {"completion_tokens": 2}}


@contextmanager
def serving(server: Together) -> Iterator[Target]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(server.answer(body)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield Target(f"http://127.0.0.1:{http.server_port}", "m")
        finally:
            http.shutdown()
            thread.join()


def arrivals(count: int) -> list[DemoArrival]:
    return [DemoArrival(RealRequest("a", "Say.", f"text {n}", None), 0.0) for n in range(count)]


def test_without_a_cap_all_requests_are_at_the_server_at_once_and_answers_keep_the_order_of_arrival():
    server = Together(6)
    with serving(server) as target:
        answers = replay(target, arrivals(6), limit=9)
    assert [answer.text for answer in answers] == [f"TEXT {n}" for n in range(6)]
    assert [(answer.status, answer.tokens) for answer in answers] == [(200, 2)] * 6
    assert server.most == 6


def test_a_cap_bounds_the_requests_at_the_server():
    server = Together(2)
    with serving(server) as target:
        replay(target, arrivals(6), limit=9, cap=2)
    assert server.most == 2


def test_every_body_carries_the_same_terms_and_the_priority_of_its_request():
    server = Together(3)
    with serving(server) as target:
        replay(target, arrivals(3), limit=9, priorities=[5, 7, 6])
    assert {(body["max_tokens"], body["temperature"], body["model"]) for body in server.bodies} == {(9, 0, "m")}
    assert {body["messages"][1]["content"]: body["priority"] for body in server.bodies} == {
        "text 0": 5,
        "text 1": 7,
        "text 2": 6,
    }
