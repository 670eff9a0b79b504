"""`magnus tenant remove` against a real database and an API over HTTP, with another tenant beside the removed one."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, event

from cli.main import commands
from models.upkeep import tenant_removal
from settings import Settings
from tests.integration.api_service import Api, finish

TABLES = (
    ("api_keys", "tenant"),
    ("tenants", "name"),
    ("webhook_endpoints", "tenant"),
    ("files", "tenant"),
    ("bulk_jobs", "tenant"),
    ("requests", "tenant"),
    ("usage_days", "tenant"),
)


@pytest.fixture
def remove(web_settings: Settings, api: Api, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `magnus tenant remove` as a user would, with an answer to its question; returns the result."""
    monkeypatch.setenv("MAGNUS_DATABASE_URL", str(web_settings.database_url))
    return lambda *words, said="": CliRunner().invoke(commands, ["tenant", "remove", *words], input=said)


def fill(api: Api, tenant: str) -> None:
    """Stores a little of everything that a tenant may have, all of it ended."""
    finish(api, api.submit()["id"])
    for statement in (
        "insert into tenants (name, weight) values (:tenant, 3)",
        """insert into webhook_endpoints (id, tenant, url, events, secret)
        values ('we_' || :tenant, :tenant, 'https://x', '{}', '')""",
        """insert into webhook_deliveries (endpoint_id, event_id, type, object_id)
        values ('we_' || :tenant, 'evt_1', 'response.completed', 'resp_1')""",
        """insert into files (id, tenant, purpose, filename, bytes)
        values ('file-' || :tenant, :tenant, 'batch', 'a', 1)""",
        "insert into file_chunks (file_id, first_line, data) values ('file-' || :tenant, 1, '{}')",
        """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, status, lines, last_line,
            expires_at) values ('batch_' || :tenant, :tenant, '/v1/responses', 'file-' || :tenant, '24h', 'completed',
            1, 1, now())""",
        """insert into bulk_lines (job_id, line, custom_id, request_id)
        select 'batch_' || :tenant, 1, 'a', min(id) from requests where tenant = :tenant""",
        """insert into operator_sessions (sha256, key_id, expires_at)
        select sha256, id, now() + interval '1 day' from api_keys where tenant = :tenant""",
        """insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
        values (now(), :tenant, 'words', 1, 2, 3, 4.0)""",
    ):
        api.sql(statement, tenant=tenant)


def stored(api: Api, tenant: str) -> dict[str, int]:
    """The number of the tenant's rows by table."""
    return {
        table: api.sql(f"select count(*) from {table} where {column} = :tenant", tenant=tenant)[0][0]
        for table, column in TABLES
    }


def test_everything_of_a_tenant_goes_but_usage_and_audit_and_another_tenant_is_untouched(remove: Any, api: Api) -> None:
    other = api.other_tenant()
    fill(api, "acme")
    fill(other, "globex")
    kept, of_others = stored(api, "globex"), ("operator_sessions", "webhook_deliveries", "file_chunks", "bulk_lines")
    assert remove("acme", "--yes").exit_code == 0
    assert stored(api, "acme") == {**dict.fromkeys(kept, 0), "usage_days": 1}
    assert stored(api, "globex") == kept == dict.fromkeys(kept, 1)
    assert [api.sql(f"select count(*) from {table}")[0][0] for table in of_others] == [1] * 4
    assert other.call("GET", "/v1/responses").status_code == 200
    audit = api.sql("select action, target, details from audit_entries")
    assert audit == [("tenant remove", "acme", {"yes": "True"})]
    assert "there is no tenant acme" in remove("acme", "--yes").output


def test_a_removal_is_asked_about_with_the_counts_and_without_a_yes_nothing_goes(remove: Any, api: Api) -> None:
    fill(api, "acme")
    asked = remove("acme", said="n\n")
    assert asked.exit_code == 1
    assert "acme has 1 settings, 1 keys, 1 webhooks, 1 files, 1 bulk jobs, 1 requests. Delete it" in asked.output
    assert api.call("GET", "/v1/responses").status_code == 200
    assert stored(api, "acme") == dict.fromkeys(stored(api, "acme"), 1)
    assert remove("acme", said="y\n").exit_code == 0
    assert stored(api, "acme")["requests"] == 0


def test_while_requests_wait_nothing_goes_without_cancel(remove: Any, api: Api) -> None:
    waiting = api.submit()["id"]
    refused = remove("acme", "--yes")
    assert (refused.exit_code, "1 requests that wait or run" in refused.output) == (1, True)
    assert "--cancel" in refused.output
    assert api.call("GET", f"/v1/responses/{waiting}").json["status"] == "queued"
    assert api.sql("select count(*) from audit_entries") == [(0,)]


@contextmanager
def a_worker_that_stops_cancelled_requests(api: Api) -> Iterator[None]:
    over = Event()

    def stop() -> None:
        while not over.wait(0.05):
            api.sql(
                """update requests set status = 'cancelled', finished_at = clock_timestamp()
                where status = 'in_progress' and cancel_requested_at is not null"""
            )

    worker = Thread(target=stop)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def test_with_cancel_waiting_and_running_requests_and_bulk_jobs_end_and_go(remove: Any, api: Api) -> None:
    fill(api, "acme")
    api.submit()
    running, other = api.submit()["id"], api.other_tenant()
    kept = other.submit()["id"]
    api.sql("update requests set status = 'in_progress', started_at = now() where id = :id", id=running)
    api.sql("update bulk_jobs set status = 'in_progress'")
    with a_worker_that_stops_cancelled_requests(api):
        done = remove("acme", "--yes", "--cancel", "--json")
    assert done.exit_code == 0, done.output
    assert stored(api, "acme") == {**dict.fromkeys(stored(api, "acme"), 0), "usage_days": 1}
    assert '"requests": 3, "unfinished_requests": 2' in done.stdout
    assert other.call("GET", f"/v1/responses/{kept}").json["status"] == "queued"


def test_a_large_tenant_goes_in_statements_of_few_rows_each_in_its_own_transaction(remove: Any, api: Api) -> None:
    finish(api, api.submit()["id"])
    columns = [
        name for (name,) in api.sql("select column_name from information_schema.columns where table_name = 'requests'")
    ]
    copied = ", ".join("id || n" if name == "id" else name for name in columns)
    api.sql(f"insert into requests select {copied} from requests, generate_series(1, 350) n")
    ends: list[int | str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "delete from requests" in statement:
            ends.append(cursor.rowcount)

    def note_commit(_: Any) -> None:
        ends.append("commit")

    event.listen(Engine, "after_cursor_execute", note)
    event.listen(Engine, "commit", note_commit)
    try:
        assert remove("acme", "--yes").exit_code == 0
    finally:
        event.remove(Engine, "after_cursor_execute", note)
        event.remove(Engine, "commit", note_commit)
    most = tenant_removal.REQUESTS_AT_ONCE
    deletes = [(rows, ends[at + 1]) for at, rows in enumerate(ends) if rows != "commit"]
    assert deletes[:5] == [(most, "commit")] * 3 + [(51, "commit"), (0, "commit")]
