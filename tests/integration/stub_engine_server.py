"""A server that speaks vLLM's part of HTTP and does on demand what a real one rarely does: refuse, break off, babble.

The token after t > FIRST is t - 1, and the end of sequence follows FIRST: a prompt that ends with FIRST + n is answered
with n tokens and EOS, also when it is resumed.
"""

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from socket import MSG_PEEK, SHUT_RDWR, socket
from threading import Event, Lock, Thread
from typing import Any

FIRST, EOS = 100, 1
Fault = Callable[["StubHandler", dict[str, Any]], None]


def prompt_of(tokens: int, name: int = 7) -> tuple[int, ...]:
    """Returns a prompt whose answer has `tokens` tokens before its EOS."""
    return (name, FIRST + tokens)


def answer_to(tokens: int) -> tuple[int, ...]:
    """The answer to `prompt_of(tokens)`."""
    return (*range(FIRST + tokens - 1, FIRST - 1, -1), EOS)


def logprobs_of(token: int, top: int) -> dict[str, Any]:
    """A log probability for each token, told apart from all others, with the likeliest tokens beside it."""
    likeliest = {f"token_id:{token + n}": -token / 1000 - n for n in range(top + 1)}
    return {"tokens": [f"token_id:{token}"], "token_logprobs": [-token / 1000], "top_logprobs": [likeliest]}


class StubServer(ThreadingHTTPServer):
    """Answers until closed; `faults` are taken one a completion, None for a right answer."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), StubHandler)
        self.faults: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.model = "stub"
        self.root: str | None = None  # the directory that it says it loaded its model from
        self.tokenizes = True
        self.answer_tokens = 8  # length of the answers to prompts that do not say it
        self.pages: dict[str, str] = {}  # pages by path, instead of the stub's own; an empty one answers 501
        self.posts: dict[str, tuple[int, str]] = {}  # (status, answer) of POSTs to other pages, by path
        self.posts_once: list[tuple[int, str]] = []  # (status, answer) of the first POSTs to those pages
        self.slow_posts = 0  # POSTs to those pages that are not answered
        self.gate = Event()  # tokens are sent while it is set
        self.gate.set()
        self.prompts: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.running = 0
        self.peak = 0  # the most that ran at once
        self.waiting = 0
        self.lock = Lock()
        self._connections: list[socket] = []
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""

    def get_request(self) -> tuple[socket, Any]:
        accepted = super().get_request()
        self._connections.append(accepted[0])
        return accepted

    def die(self) -> None:
        """As a process that is killed: every connection breaks, and none can be made."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
            self.server_close()
            for connection in self._connections:
                with suppress(OSError):  # it was closed before
                    connection.shutdown(SHUT_RDWR)


class StubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if {path, self.path} & self.server.pages.keys():
            page = self.server.pages.get(self.path, self.server.pages.get(path, ""))
            return self.answer(200 if page else 501, page)
        if path == "/v1/models":
            served = {"id": self.server.model, "owned_by": "vllm", "max_model_len": 4096, "root": self.server.root}
            return self.answer(200, json.dumps({"object": "list", "data": [served]}))
        if path == "/metrics":
            return self.answer(
                200,
                f"vllm:num_requests_running {self.server.running}\nvllm:num_requests_waiting {self.server.waiting}\n"
                'vllm:num_preemptions_total 0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n',
            )
        return self.answer(404, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path in self.server.posts:
            self.server.bodies.append(body)
            if self.server.slow_posts:
                self.server.slow_posts -= 1
                self.connection.recv(1)  # until the client goes
                return None
            once = self.server.posts_once
            status, page = once.pop(0) if once else self.server.posts[self.path]
            self.answer(status, page)
            return self.close_late() if status == 500 else None
        if self.path == "/tokenize":
            return self.answer(200, '{"tokens": [7]}') if self.server.tokenizes else self.answer(404, "{}")
        if self.path != "/v1/completions" or not body.get("stream"):
            return self.answer(200, json.dumps({"choices": [{"token_ids": [EOS], "finish_reason": "stop"}]}))
        trial = body["prompt"] == [0]
        if not trial:
            self.server.prompts.append(body["prompt"])
            self.server.bodies.append(body)
        with self.server.lock:
            self.server.running += 1
            self.server.peak = max(self.server.peak, self.server.running)
        try:
            faults = self.server.faults
            fault = self.server.always or (faults.popleft() if faults and not trial else None)
            (fault or right)(self, body)
        finally:
            with self.server.lock:
                self.server.running -= 1

    def answer(self, status: int, body: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def close_late(self) -> None:
        """As uvicorn after an exception: resets a next request that was sent before the connection is closed."""
        select([self.connection], [], [], 1.0)
        self.close_connection = True

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_event(self, event: object) -> None:
        self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())

    def send_tokens(self, body: dict[str, Any], most: int) -> bool:
        """Send tokens while the gate is open; whether the answer is complete."""
        last = body["prompt"][-1]
        if last < FIRST:  # a prompt from a tokenizer
            last = FIRST + self.server.answer_tokens
        for sent in range(1, most + 1):
            while not self.server.gate.wait(0.01):
                if select([self.connection], [], [], 0)[0] and not self.connection.recv(1, MSG_PEEK):
                    return True  # the client has gone
            last = last - 1 if last > FIRST else EOS
            reason = "stop" if last == EOS else "length" if sent == body["max_tokens"] else None
            choice: dict[str, Any] = {"text": "", "token_ids": [last], "finish_reason": reason}
            if "logprobs" in body:
                choice["logprobs"] = logprobs_of(last, body["logprobs"])
            self.send_event({"choices": [choice]})
            if reason is not None:
                self.send_event("[DONE]")
                return True
        return False


def right(handler: StubHandler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.send_tokens(body, 10**6)


def breaks_off_after(tokens: int) -> Fault:
    def fault(handler: StubHandler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.send_tokens(body, tokens)

    return fault


def refuses(status: int, said: str = "no", **headers: str) -> Fault:
    return lambda handler, _: handler.answer(status, json.dumps({"error": {"message": said}}), **headers)


def says(*lines: str) -> Fault:
    """A stream of these lines as they are."""

    def fault(handler: StubHandler, _: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.wfile.write("\n".join(lines).encode())

    return fault


def falls_silent_after(tokens: int) -> Fault:
    def fault(handler: StubHandler, body: dict[str, Any]) -> None:
        handler.begin_stream()
        handler.send_tokens(body, tokens)
        handler.connection.recv(1)  # until the client goes

    return fault
