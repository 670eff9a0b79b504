"""Uploads that are hostile, broken off or too large are refused by name, and leave nothing in the database."""

import io
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from settings import Settings
from tasks.chores.upkeep import do_upkeep
from tests.integration.api_service import Api, ApiAnswer
from tests.integration.bulk_stage import BulkStage, chat_line, jsonl
from tests.integration.conftest import running_api

DAY = timedelta(days=1)
BOUNDARY = "b0undary"


def upload(api: Api, content: bytes = b"{}\n", **fields: Any) -> ApiAnswer:
    data = {"purpose": "batch", "file": (io.BytesIO(content), "lines.jsonl")} | fields
    return api.call("POST", "/v1/files", data={name: value for name, value in data.items() if value is not None})


class Endless:
    """A multipart body whose file has one line of this many bytes, made as it is read."""

    def __init__(self, size: int) -> None:
        self._head = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        ).encode()
        self._tail = f"\r\n--{BOUNDARY}--\r\n".encode()
        self.size = len(self._head) + size + len(self._tail)
        self._left = size

    def read(self, size: int = -1) -> bytes:
        size = 65_536 if size < 0 else size
        if self._head:
            part, self._head = self._head[:size], self._head[size:]
        elif self._left:
            part = b"x" * min(size, self._left)
            self._left -= len(part)
        else:
            part, self._tail = self._tail[:size], self._tail[size:]
        return part


def send_endless(api: Api, body: Endless, length: int | None = None) -> ApiAnswer:
    given = {
        "wsgi.input": body,
        "CONTENT_LENGTH": str(body.size if length is None else length),
        "CONTENT_TYPE": f"multipart/form-data; boundary={BOUNDARY}",
    }
    return api.call("POST", "/v1/files", environ_overrides=given)


@pytest.mark.parametrize(
    ("content", "fields", "param", "said"),
    [
        (b"", {}, "file", "no lines"),
        (b"\n\n", {}, "file", "no lines"),
        (b"{}\n\xff\n", {}, "file", "Line 2 of the file is not UTF-8"),
        (b"{}\n\n\0", {}, "file", "Line 3 of the file has a NUL byte"),
        (b"{}\n" * 50_001, {}, "file", "more than 50,000 lines"),
        (b"{}\n" + b"x" * 100_001, {}, "file", "Line 2 of the file has more than 100,000 bytes"),
        (b"{}", {"file": None}, "file", "Missing required parameter: 'file'"),
        (b"{}", {"file": "no file"}, "file", "Missing required parameter: 'file'"),
        (b"{}", {"purpose": None}, "purpose", "'batch'"),
        (b"{}", {"purpose": "fine-tune"}, "purpose", "'batch'"),
        (b"{}", {"nonsense": "1"}, "nonsense", "Unknown parameter"),
        (b"{}", {"expires_after[anchor]": "created_at"}, "expires_after[seconds]", "3,600 to"),
        (b"{}", {"expires_after[anchor]": "now", "expires_after[seconds]": "4000"}, "expires_after[anchor]", "created"),
        (
            b"{}",
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "1e9"},
            "expires_after[seconds]",
            "3,600 to",
        ),
    ],
)
def test_what_is_no_file_of_lines_is_refused_by_name(
    api: Api, content: bytes, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = upload(api, content, **fields)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)
    assert said in answer.json["error"]["message"]
    assert api.sql("select (select count(*) from files), (select count(*) from file_chunks)") == [(0, 0)]


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "text/plain", ""])
def test_a_body_that_is_no_form_is_refused(api: Api, content_type: str) -> None:
    answer = api.call("POST", "/v1/files", data=b"{}", content_type=content_type)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, "file")


def test_two_files_at_once_are_refused(api: Api) -> None:
    files = [(io.BytesIO(b"{}"), "a"), (io.BytesIO(b"{}"), "b")]
    assert upload(api, file=files).status_code == 400
    assert api.sql("select count(*) from files") == [(0,)]


def test_a_line_of_50_megabytes_is_refused_in_little_memory(api: Api) -> None:
    upload(api)
    tracemalloc.start()
    try:
        answer = send_endless(api, Endless(50 * 2**20))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.status_code == 400
    assert answer.json["error"]["code"] == "line_too_long"
    assert peak_bytes < 3 * 2**20


def test_an_upload_that_breaks_off_leaves_nothing(api: Api) -> None:
    body = Endless(100)
    answer = send_endless(api, body, length=body.size + 1000)
    assert answer.status_code == 400
    assert api.sql("select count(*) from files") == [(0,)]


@pytest.fixture
def small_api(web_settings: Settings) -> Iterator[Api]:
    """An API that accepts only small files."""
    yield from running_api(web_settings.model_copy(update={"max_file_bytes": 300_000, "tenant_file_bytes": 400_000}))


def test_a_file_above_the_limit_is_refused_whatever_its_length_says(small_api: Api) -> None:
    answer = upload(small_api, jsonl([chat_line("a", "x" * 1000)] * 400))
    assert answer.status_code == 413
    assert small_api.sql("select count(*) from files") == [(0,)]


def test_a_tenants_files_have_a_limit_together(small_api: Api) -> None:
    content = jsonl([chat_line("a", "x" * 1000)] * 200)
    first = upload(small_api, content)
    refused = upload(small_api, content)
    assert (refused.status_code, refused.json["error"]["code"]) == (400, "storage_full")
    small_api.call("DELETE", f"/v1/files/{first.json['id']}")
    assert upload(small_api, content).status_code == 200


def test_a_list_goes_on_behind_a_file_that_was_deleted_meanwhile(api: Api) -> None:
    ids = [upload(api).json["id"] for _ in range(3)]
    seen, path = [], "/v1/files?limit=1&order=asc"
    for _ in ids:
        [one] = api.call("GET", path).json["data"]
        assert api.call("DELETE", f"/v1/files/{one['id']}").status_code == 200
        seen.append(one["id"])
        path = f"/v1/files?limit=1&order=asc&after={one['id']}"
    assert seen == ids
    assert api.call("GET", path).json["data"] == []
    assert api.other_tenant().call("GET", path).status_code == 400


def test_files_end_when_they_expire_when_they_are_old_and_when_nobody_needs_them_any_more(api: Api) -> None:
    soon: dict[str, Any] = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    expiring = upload(api, **soon).json
    kept, old, deleted = (upload(api).json for _ in range(3))
    assert expiring["expires_at"] - expiring["created_at"] == 3600
    assert kept["expires_at"] is None
    api.sql("update files set expires_at = now() where expires_at is not null")
    api.sql("update files set created_at = now() - interval '3 days' where id = :id", id=old["id"])
    api.call("DELETE", f"/v1/files/{deleted['id']}")
    begun = datetime.now(UTC) - 2 * DAY
    api.sql(
        "insert into files (id, tenant, purpose, filename, created_at) values ('f', 'a', 'batch', '', :at)", at=begun
    )
    do_upkeep(api.engine, 2.5 * DAY.total_seconds())
    assert api.sql("select id from files") == [(kept["id"],)]
    assert api.sql("select distinct file_id from file_chunks") == [(kept["id"],)]


def test_a_batch_keeps_its_input_its_answers_and_itself_until_it_ended_long_ago(api: Api) -> None:
    bulk = BulkStage(api, max_requests=2)
    file = upload(api, jsonl([chat_line("a"), chat_line("b")])).json["id"]
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = api.call("POST", "/v1/batches", json=body).json["id"]
    bulk.feed()
    bulk.answer()
    api.call("DELETE", f"/v1/files/{file}")
    api.sql("update requests set finished_at = now() - interval '3 days'")
    do_upkeep(api.engine, DAY.total_seconds())
    bulk.finish()
    done = api.call("GET", f"/v1/batches/{batch}").json
    assert done["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    do_upkeep(api.engine, DAY.total_seconds())
    content = api.call("GET", f"/v1/files/{done['output_file_id']}/content").get_data()
    assert len(content.splitlines()) == 2
    api.sql("update bulk_jobs set completed_at = now() - interval '2 days'")
    do_upkeep(api.engine, DAY.total_seconds())
    assert api.call("GET", f"/v1/batches/{batch}").status_code == 404
    assert api.sql("select (select count(*) from files), (select count(*) from bulk_lines)") == [(0, 0)]
    # the request that ended 3 days ago was deleted with its batch
    assert api.sql("select count(*) from requests") == [(1,)]


def test_a_part_of_the_form_that_has_no_name_is_refused(api: Api) -> None:
    body = f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\nbatch\r\n"
    body += (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n{{}}\n\r\n--{BOUNDARY}--\r\n'
    )
    form = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    assert api.call("POST", "/v1/files", data=body.encode(), headers=form).status_code == 400
