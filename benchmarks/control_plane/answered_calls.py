"""Answers calls of the API in this process, without a server; `request_costs` starts it and reads its figures.

Reads `KIND NUMBER` from its input, answers that many calls, and writes its thread's CPU milliseconds a call. Starts as
`python -m gevent.monkey FILE`, which patches it as gunicorn's worker does; the environment has database and key.
"""

import io
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from settings import read_settings
from webapp import app as web

# The words can be any, because no answer is generated.
WORDS = ["red", "green", "blue", "one", "two", "three", "small", "big", "old", "new", "house", "tree", "river", "bird"]


def bodies(model: str) -> Iterator[bytes]:
    """Yield request bodies with inputs of 5 to 40 words, without end."""
    rng = random.Random(1)
    inputs = [" ".join(rng.choices(WORDS, k=rng.randint(5, 40))) for _ in range(200)]
    made = {"model": model, "instructions": "Repeat the words.", "background": True}
    return cycle([json.dumps({**made, "input": one}).encode() for one in inputs])


def call(app: Any, method: str, path: str, body: bytes = b"") -> Any:
    """Call the application as a server does; returns the answer's JSON."""
    environment = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "here",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "here",
        "HTTP_AUTHORIZATION": f"Bearer {os.environ['BENCHMARK_KEY']}",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
    }
    answered: list[str] = []
    pieces = app(environment, lambda status, *_: answered.append(status))
    content = b"".join(pieces)
    pieces.close()
    if not answered[0].startswith("200"):
        raise AssertionError(f"{answered[0]}: {content.decode()}")
    return json.loads(content)


def main() -> None:
    """Answer groups of calls until the input ends."""
    web.STATEMENT_TIMEOUT_S = 60.0  # on a busy machine slow statements must not fail
    app = web.create_app(read_settings())
    requests, last = bodies(app.extensions["magnus"].prompt_limits.model_name), ""
    for line in sys.stdin:
        kind, number = line.split()
        began = time.thread_time()
        for _ in range(int(number)):
            if kind == "submission":
                last = call(app, "POST", "/v1/responses", next(requests))["id"]
            else:
                call(app, "GET", f"/v1/responses/{last}")
        print(1e3 * (time.thread_time() - began) / int(number), flush=True)


if __name__ == "__main__":
    main()
