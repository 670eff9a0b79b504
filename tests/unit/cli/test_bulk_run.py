"""A run of a file takes up what an interrupted one left, repeats no upload and no creation, and saves what it gets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from cli.api_client import Client, Json
from cli.bulk_run import BulkRun, dry_run, follow
from cli.output import CommandFailed

LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {}}) + "\n"


@dataclass
class Service:
    """What the service was asked, and the batch that it has."""

    calls: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    polls: int = 0
    error_file: str | None = None
    dry_runs: int = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1")
        self.calls.append(f"{request.method} {path}")
        if path.endswith("/content"):
            return httpx.Response(200, content=f"lines of {path.split('/')[2]}\n")
        if path == "/files":
            assert LINE.encode() in request.read()
            return httpx.Response(200, json={"id": "file-1"})
        if request.method == "DELETE":
            return httpx.Response(200, json={"id": "file-1", "deleted": True})
        if request.method == "POST":
            body = json.loads(request.read())
            assert body["endpoint"] == "/v1/responses"
            if body["completion_window"] == "never":
                return httpx.Response(400, json={"error": {"message": "no such window"}})
            if body.get("magnus") == {"dry_run": True}:
                self.dry_runs += 1
            else:
                self.keys.append(request.headers["Idempotency-Key"])
        else:
            self.polls += 1
        return httpx.Response(200, json=self.batch("completed" if self.polls > 1 else "in_progress"))

    def batch(self, status: str) -> Json:
        files = {"output_file_id": "file-out", "error_file_id": self.error_file}
        return {"id": "batch_1", "status": status, "request_counts": {}, **files}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "in.jsonl").write_text("\n" + LINE)
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def a_client(service: Service, url: str = "http://magnus") -> Client:
    return Client(url, "key", transport=httpx.MockTransport(service.answer), sleep=lambda _: None)


def a_run(service: Service, paths: tuple[Path, Path], url: str = "http://magnus") -> BulkRun:
    return BulkRun(a_client(service, url), *paths)


def test_errors_are_saved_beside_the_answers(service: Service, paths: tuple[Path, Path]) -> None:
    run = a_run(service, paths)
    run.save(service.batch("completed") | {"error_file_id": "file-err"})
    assert run.errors_path.read_text() == "lines of file-err\n"


def test_a_run_whose_creation_was_not_answered_repeats_it_under_its_key(
    service: Service, paths: tuple[Path, Path]
) -> None:
    first = a_run(service, paths)
    first.start(None, "24h")
    state = json.loads(first.state_path.read_text())
    first.state_path.write_text(json.dumps(state | {"batch": None}))
    a_run(service, paths).start(None, "24h")
    assert service.calls.count("POST /files") == 1
    assert service.keys == [service.keys[0]] * 2


def test_the_state_of_another_run_is_not_taken_up(service: Service, paths: tuple[Path, Path]) -> None:
    run = a_run(service, paths)
    run.start(None, "24h")
    with pytest.raises(CommandFailed, match="or on http://magnus"):
        a_run(service, paths, "http://other")
    paths[0].write_text(LINE + LINE)
    with pytest.raises(CommandFailed, match="remove it to start anew"):
        a_run(service, paths)
    run.state_path.write_text("no json")
    with pytest.raises(CommandFailed, match="cannot be read"):
        a_run(service, paths)


@pytest.mark.parametrize("text", ["", "no json\n", "[]\n", "{}\n"])
def test_a_first_line_without_a_call_asks_for_the_endpoint(
    service: Service, paths: tuple[Path, Path], text: str
) -> None:
    paths[0].write_text(text)
    with pytest.raises(CommandFailed, match="give --endpoint"):
        a_run(service, paths).start(None, "24h")
    assert service.calls == []


def test_a_dry_run_leaves_nothing_in_the_service_nor_beside_the_file(
    service: Service, paths: tuple[Path, Path]
) -> None:
    client = a_client(service)
    assert dry_run(client, paths[0], None, "30m")["id"] == "batch_1"
    assert service.calls == ["POST /files", "POST /batches", "DELETE /files/file-1"]
    assert service.dry_runs == 1
    assert [path.name for path in paths[0].parent.iterdir()] == ["in.jsonl"]
    service.calls.clear()
    with pytest.raises(CommandFailed, match="no such window"):
        dry_run(client, paths[0], None, "never")
    assert service.calls[-1] == "DELETE /files/file-1"


def watched(done: int = 0, **fields: object) -> Json:
    return {"status": "in_progress", "request_counts": {"total": 10, "completed": done, "failed": 0}} | fields


def test_a_watched_batch_is_waited_for_through_a_restart_of_the_service() -> None:
    answers: Iterator[httpx.Response | httpx.ConnectError] = iter(
        [httpx.ConnectError("gone"), httpx.Response(503), httpx.Response(200, json=watched(10, id="batch_1"))]
    )
    ended = httpx.Response(200, json=watched(10, status="completed", id="batch_1"))

    def answer(_: httpx.Request) -> httpx.Response:
        one = next(answers, ended)
        if isinstance(one, Exception):
            raise one
        return one

    client = Client("http://magnus", "key", attempts=1, transport=httpx.MockTransport(answer), sleep=lambda _: None)
    shown = list[str]()
    batch = follow(client, watched(3, id="batch_1"), lambda now: shown.append(now["status"]), lambda _: None)
    assert batch["status"] == "completed"
    assert shown == ["in_progress", "no answer", "no answer", "in_progress", "completed"]


def test_a_refused_call_ends_the_watch() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(404, json={"error": {"message": "No batch."}}))
    with pytest.raises(CommandFailed, match="No batch"):
        follow(Client("http://magnus", "key", transport=transport), watched(id="b"), lambda _: None, lambda _: None)
