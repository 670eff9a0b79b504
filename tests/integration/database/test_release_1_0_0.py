"""The migration of release 1.0.0 keeps every request, also when it is undone."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from models.connections.session import make_engine
from models.schema_upgrade import downgrade, upgrade

PLAIN = {"sampling": {"temperature": 0.5, "top_p": None}, "min_tokens": 3, "stop": []}
VECTORS, SCORES = ({"pooling": {"task": task, "tokens": [3]}} for task in ("embed", "score"))
# id, status, limit, priority as it was coded, body, seconds of the ETA; kind, tier and priority of today
REQUESTS: Sequence[tuple[str, str, int, int, dict[str, Any], float | None, tuple[str, str, int]]] = [
    ("queued", "queued", 20, 7, PLAIN, 4.0, ("answer", "default", 7)),
    ("line", "queued", 20, -1100, PLAIN, None, ("answer", "flex", -100)),
    ("urgent", "in_progress", 20, 1003, PLAIN, 4.0, ("answer", "priority", 3)),
    ("label", "completed", 1, 0, PLAIN, None, ("answer", "default", 0)),
    ("vectors", "completed", 1, -997, VECTORS, None, ("vectors", "flex", 3)),
    ("scores", "failed", 1, -3, SCORES, None, ("scores", "default", -3)),
]
BEFORE = """
    insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens, priority, status, arrived_at, finished_at, forecast_s, eta_at, eta_low_at, eta_high_at)
    select :id, 'acme', 'small', 'a', '', 'b', cast(:body as jsonb), 1, 1, :limit, :priority, given.status, came,
        case when given.status not in ('queued', 'in_progress') then timestamptz '2026-11-02' end, given.eta,
        came + make_interval(secs => given.eta), came + interval '1 s', came + interval '9 s'
    from (
        select cast(:status as text) as status, cast(:eta as float8) as eta, timestamptz '2026-11-01' as came
    ) as given
"""
JOB = """
    insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, lines, last_line, expires_at)
    values ('batch_1', 'acme', '/v1/responses', 'file_1', '24h', 1, 1, now())
"""
CODED = "select id, limit_tokens, priority, eta_at - arrived_at as eta, body from requests order by arrived_at, id"


def test_every_request_keeps_its_kind_its_rank_and_its_eta(database_url: str) -> None:
    downgrade(database_url, "0038")
    engine = make_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text(JOB))
        for name, status, limit, priority, body, eta, _ in REQUESTS:
            values = {"id": name, "status": status, "limit": limit, "priority": priority, "eta": eta}
            connection.execute(text(BEFORE), values | {"body": json.dumps(body)})
        coded = connection.execute(text(CODED)).all()
    upgrade(database_url)
    with engine.begin() as connection:
        rows = {row.id: row for row in connection.execute(text("select * from requests"))}
        assert connection.scalar(text("select service_tier from bulk_jobs")) == "flex"
    for name, status, _, _, body, eta, ranked in REQUESTS:
        row = rows[name]
        assert (row.status, (row.kind, row.tier, row.priority)) == (status, ranked)
        told = None if eta is None else {"forecast_s": eta, "eta_s": eta, "low_s": 1.0, "high_s": 9.0}
        assert row.eta == told
        if body is PLAIN and status != "completed":
            assert row.body["sampling"] == {"temperature": 0.5, "min_tokens": 3}
    downgrade(database_url, "0038")
    with engine.begin() as connection:
        undone = connection.execute(text(CODED)).all()
    assert [row[:4] for row in undone] == [row[:4] for row in coded]
    assert {row.id: row.body["pooling"] for row in undone if "pooling" in row.body} == {
        "vectors": VECTORS["pooling"],
        "scores": SCORES["pooling"],
    }
    upgrade(database_url)
    engine.dispose()
