"""What a client sends is in no log, metric or message, and in no file that others can read."""

import base64
import json
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import Engine, text

from models.connections.session import make_engine
from tests.e2e.whole_service import Up, eventually

CANARY = f"canary{secrets.token_hex(8)}"  # one word, so that it survives any splitting


def service_json(up: Up) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((up.state_dir / "service.json").read_text())
    return facts


def canary_body(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "instructions": f"Repeat the text. {CANARY}",
        "input": f"apple {CANARY}",
        "background": True,
        "max_output_tokens": 20,
        "metadata": {"application": CANARY, CANARY: CANARY},
        "magnus": {"stop": [CANARY]},
    } | fields


@pytest.fixture(scope="module")
def sent(up: Up) -> str:
    """The canary went through every way into the service: answered, refused, failed, and met by a broken database."""
    headers = {"Authorization": f"Bearer {up.key}", "X-Request-Name": CANARY}
    engine = make_engine(service_json(up)["database_url"], pool_size=1)
    with httpx.Client(base_url=up.url, headers=headers, timeout=60) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]

        def submit(key: str, **fields: Any) -> httpx.Response:
            return client.post(
                "/v1/responses", json=canary_body(model, **fields), headers={"Idempotency-Key": f"{CANARY}-{key}"}
            )

        answered = submit("answered")
        assert answered.status_code == 200, answered.text
        address = f"/v1/responses/{answered.json()['id']}"
        eventually(lambda: client.get(address).json()["status"] in ("completed", "incomplete"))
        assert submit("answered", input=f"{CANARY} another").status_code == 422
        assert submit("refused", temperature=CANARY).status_code == 400
        assert submit("unknown", **{CANARY: CANARY}).status_code == 400
        assert client.post("/v1/responses", json=canary_body(CANARY)).status_code == 404
        assert client.post("/v1/responses", content=f'{{"input": "{CANARY}').status_code == 400
        assert client.get("/v1/responses", params={"application": CANARY, "after": CANARY}).status_code == 400
        assert client.get(f"/{CANARY}", headers={"Authorization": f"Bearer {CANARY}"}).status_code == 404
        assert client.request(CANARY.upper()[:12].translate({ord(d): "X" for d in "0123456789"}), "/v1/models")

        refuse = f"alter table requests add constraint canary check (input not like '%{CANARY}%') not valid"
        with engine.begin() as connection:  # Postgres then quotes the whole row in the detail of its error
            connection.execute(text(refuse))
        try:
            assert submit("database").status_code == 500
        finally:
            with engine.begin() as connection:
                connection.execute(text("alter table requests drop constraint canary"))

        broken = client.post("/v1/responses", json=canary_body(model, input=f"{CANARY} is to be broken")).json()["id"]
        with engine.begin() as connection:  # what no worker can read: it fails with the request's text at hand
            connection.execute(
                text("""update requests set body = jsonb_set(body, '{sampling}', to_jsonb(cast(:canary as text)))
                    where id = :id and status = 'queued'"""),
                {"id": broken, "canary": CANARY},
            )
        eventually(lambda: ended(engine, broken))  # the API cannot show such a row
        with engine.begin() as connection:
            connection.execute(text("delete from requests where id = :id"), {"id": broken})
    host, _, port = up.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"POST /v1/responses HTTP/1.1\r\nHost: here\r\nBad {CANARY} Header: {CANARY}\r\n\r\n".encode())
        assert b"400" in raw.recv(64)
    engine.dispose()
    return CANARY


def ended(engine: Engine, id: str) -> bool:
    with engine.connect() as connection:
        finished_at = text("select finished_at is not null from requests where id = :id")
        return bool(connection.execute(finished_at, {"id": id}).scalar_one())


def test_no_log_has_it(up: Up, sent: str) -> None:
    logs = [path for path in (up.state_dir / "logs").iterdir() if path.is_file()]
    assert {path.stem for path in logs} >= {"web", "planner", "predictor", "chores", "postgres", "flower"}
    found = {path.name: lines_with(path, sent) for path in logs if lines_with(path, sent)}
    assert found == {}


def lines_with(path: Path, canary: str) -> list[str]:
    return [line for line in path.read_text(errors="replace").splitlines() if canary in line.lower()]


def test_no_metric_has_it_and_labels_come_from_a_fixed_set(up: Up, sent: str) -> None:
    metrics = httpx.get(f"{up.url}/metrics", timeout=60).text
    assert sent not in metrics.lower()
    assert 'method="other"' in metrics


def test_neither_the_broker_nor_flower_has_it(up: Up, sent: str) -> None:
    facts = service_json(up)
    with redis.Redis.from_url(facts["redis_url"]) as broker:
        for key in broker.scan_iter():
            assert sent.encode() not in key + (broker.dump(key) or b"")
    password = base64.b64encode(f"{facts['dashboard_user']}:{facts['dashboard_password']}".encode()).decode()
    with httpx.Client(
        base_url=facts["flower_url"], headers={"Authorization": f"Basic {password}"}, timeout=60
    ) as flower:
        for page in ("/tasks", "/workers", "/broker", "/metrics"):
            assert sent not in flower.get(page).text
    for file in (up.state_dir / "valkey").rglob("*"):  # what passed through the broker is in its append-only file
        assert not file.is_file() or sent.encode() not in file.read_bytes()


def test_no_file_of_the_service_is_for_others(up: Up, sent: str) -> None:
    entries = [path for path in up.state_dir.rglob("*") if not path.is_symlink()]
    files = [path for path in entries if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert [path for path in entries if path.is_dir() and path.stat().st_mode & 0o007] == []
