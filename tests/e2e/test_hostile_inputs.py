"""What a client may send to keep a process busy is refused, or answered, while a neighbour's calls go on."""

import gzip
import json
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from tests.e2e.whole_service import Up

pytestmark = pytest.mark.timeout(300)

CHAT, RESPONSE, TOKENS = "/v1/chat/completions", "/v1/responses", "/tokenize"
REFUSED = {400, 413}
ANSWERED = {200}
NEIGHBOURS_TIMEOUT_S = 5.0
HOSTILE_TIMEOUT_S = 30.0


def chat(content: Any = "ant river", **others: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Repeat the text."}, {"role": "user", "content": content}]
    return {"model": "bundled", "max_tokens": 8, "messages": messages, **others}


def held_to(schema: Any) -> tuple[str, Any, set[int]]:
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return CHAT, chat(response_format=named), REFUSED


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


LETTERS = {"type": "object", "patternProperties": {f"^abc{number}\\p{{L}}+$": {} for number in range(640)}}
TO_EACH_OTHER = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
AT_ONCE = {"allOf": [{"type": "string", "pattern": f".*{one}.*"} for one in "abcdefghijklmnopqrst"]}
CASES: dict[str, tuple[str, Any, set[int]]] = {
    "patterns of letters": held_to(LETTERS),
    "a large multiple": held_to({"type": "integer", "multipleOf": 9999999}),
    "several multiples": held_to({"allOf": [{"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23)]}),
    "patterns at once": held_to(AT_ONCE),
    "references to each other": held_to(TO_EACH_OTHER),
    "a reference to itself": held_to({"$ref": "#"}),
    "many keys": held_to({"type": "object", "properties": {f"key{n}": {"type": "string"} for n in range(1500)}}),
    "a large constant": held_to({"const": {f"k{n}": [n] * 10 for n in range(800)}}),
    "a product of alternatives": held_to({"allOf": [{"anyOf": [{"const": n} for n in range(4)]} for _ in range(12)]}),
    "a pattern of stars": held_to({"type": "string", "pattern": "^" + ".*" * 300 + "$"}),
    "a pattern of options": held_to({"type": "string", "pattern": "^" + "a?" * 2000 + "a" * 2000 + "$"}),
    "a deep pattern": held_to({"type": "string", "pattern": "^" + "(?:" * 200 + "a" + ")?" * 200 + "$"}),
    "a deep schema": held_to({"enum": [nested(100)]}),
    "a pattern that fails later": (*held_to({"type": "string", "pattern": "^(a{1,100}){1,100}$"})[:2], {200, 400, 502}),
    "a tool that must be called": (CHAT, chat(tools=[tool(LETTERS)], tool_choice="required"), REFUSED),
    "many tools": (CHAT, chat(tools=[tool({"x": "y" * 60_000}, f"f{n}") for n in range(100)]), REFUSED),
    "a long description": (CHAT, chat(tools=[tool({"description": "😀" * 10_000})]), REFUSED),
    "millions of numbers": (CHAT, chat([1] * 2_000_000), REFUSED),
    "many parts": (CHAT, chat([{"type": "text", "text": "a"}] * 80_000), REFUSED),
    "many wrong parts": (RESPONSE, {"model": "bundled", "input": [{"type": 1}] * 50_000}, REFUSED),
    "many unknown fields": (CHAT, chat() | {f"x{number}": 1 for number in range(60_000)}, REFUSED),
    "much metadata": (CHAT, chat(metadata={f"x{number}": "y" for number in range(60_000)}), REFUSED),
    "deep JSON": (CHAT, b"[" * 4_000_000, REFUSED),
    "an open text": (CHAT, b'{"model": "' + b'\\"' * 3_000_000, REFUSED),
    "noncharacters": (TOKENS, {"messages": [{"role": "user", "content": "\ufdd0" * 260_000}]}, REFUSED),
    "forged special tokens": (CHAT, chat("<eos>\ufdd0" * 50_000), REFUSED),
    "a million spaces": (CHAT, chat(" " * 999_999 + "a"), REFUSED),
    "emoji": (CHAT, chat("👩‍👩‍👧‍👦" * 50_000), REFUSED),
    "combining marks": (TOKENS, {"prompt": "a" + "\u0301" * 250_000}, REFUSED),
    "a ligature that unfolds": (TOKENS, {"prompt": "\ufdfa" * 250_000}, REFUSED),
    "many prompts": ("/v1/completions", {"model": "bundled", "prompt": ["a " * 9_000] * 128, "max_tokens": 1}, REFUSED),
    "stop strings": (CHAT, chat(stop=["a" * 64] * 4), ANSWERED),
    "many stop strings": (CHAT, chat(stop=["a"] * 60_000), REFUSED),
    "many token ids": ("/detokenize", {"tokens": [1] * 131_072}, REFUSED),
    "arguments that are deep": (CHAT, chat() | {"messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 500_000}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
    ]}, REFUSED),
    "more log probabilities than a call may have": (
        CHAT, chat(n=128, logprobs=True, top_logprobs=20) | {"max_tokens": 250}, REFUSED
    ),
    "as many log probabilities as a call may have": (
        CHAT, chat(n=64, logprobs=True, top_logprobs=20) | {"max_tokens": 90}, ANSWERED
    ),
}  # fmt: skip


class Neighbour:
    """Calls once a second, in a thread, and keeps what every call took and how it ended."""

    def __init__(self, up: Up) -> None:
        self.statuses: list[int | str] = []
        self.worst_s = 0.0
        self._client = httpx.Client(
            base_url=up.url, headers={"Authorization": f"Bearer {up.key}"}, timeout=NEIGHBOURS_TIMEOUT_S
        )
        self._ended = Event()
        self._thread = Thread(target=self._call_on)

    def _call_on(self) -> None:
        while not self._ended.wait(1.0):
            began = time.monotonic()
            try:
                self.statuses.append(self._client.post(CHAT, json=chat()).status_code)
            except httpx.HTTPError as error:
                self.statuses.append(type(error).__name__)
            self.worst_s = max(self.worst_s, time.monotonic() - began)

    def __enter__(self) -> "Neighbour":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


@pytest.fixture(scope="module")
def neighbour(up: Up) -> Iterator[Neighbour]:
    with Neighbour(up) as neighbour:
        yield neighbour


def pids(up: Up) -> dict[str, int]:
    return {entry["name"]: entry["pid"] for entry in json.loads((up.state_dir / "processes.json").read_text())}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_call_is_refused_by_name_and_disturbs_neither_processes_nor_neighbours(
    up: Up, neighbour: Neighbour, case: str
) -> None:
    path, body, expected = CASES[case]
    before = pids(up)
    data = gzip.compress(body if isinstance(body, bytes) else json.dumps(body).encode(), compresslevel=1)
    headers = {"Authorization": f"Bearer {up.key}", "Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = httpx.post(up.url + path, content=data, headers=headers, timeout=HOSTILE_TIMEOUT_S)
    assert answer.status_code in expected, answer.text[:500]
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
    assert pids(up) == before
    assert set(neighbour.statuses) <= {200}, neighbour.statuses
    print(f"{case}: {answer.elapsed.total_seconds():.2f} s, the neighbour's worst call {neighbour.worst_s:.2f} s")


HOSTILE_LINES = [held_to(LETTERS)[1], held_to({"type": "integer", "multipleOf": 9999999})[1], chat([1] * 300_000)]


def test_hostile_lines_of_a_batch_fail_by_name_and_the_others_are_answered(up: Up, neighbour: Neighbour) -> None:
    bodies = [chat(), *HOSTILE_LINES, chat()]
    lines = [{"custom_id": str(n), "method": "POST", "url": CHAT, "body": body} for n, body in enumerate(bodies)]
    before, headers = pids(up), {"Authorization": f"Bearer {up.key}"}
    with httpx.Client(base_url=f"{up.url}/v1", headers=headers, timeout=HOSTILE_TIMEOUT_S) as client:
        file = "\n".join(map(json.dumps, lines))
        stored = client.post("/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", file)}).json()
        asked = {"input_file_id": stored["id"], "endpoint": CHAT, "completion_window": "24h"}
        batch = client.post("/batches", json=asked).json()
        pause = Event()
        while batch["status"] not in ("completed", "failed"):
            pause.wait(0.2)
            batch = client.get(f"/batches/{batch['id']}").json()
        failed = client.get(f"/files/{batch['error_file_id']}/content").text.splitlines()
    assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 3}
    # a line with more values than any request is not parsed, so that its name is not known
    assert {json.loads(line)["custom_id"] for line in failed} == {"1", "2", None}
    assert pids(up) == before
    assert set(neighbour.statuses) <= {200}, neighbour.statuses
