"""However many calls come at once, no limit is exceeded; what a call that fails had reserved is free again."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.bulk.bulk_jobs import MOST_UNENDED
from models.webhooks.webhook_endpoints import MOST_ENDPOINTS
from settings import Settings
from tests.integration.api_service import Api, ApiAnswer
from tests.integration.conftest import running_api
from webapp import app
from webapp.bulk.file_upload import CHUNK_BYTES
from webapp.routes import responses_api
from webapp.waiting.patience import AT_ONCE

CALLS = 60
MOST_QUEUED, MOST_WAITING, MOST_BYTES = 7, 5, 2_000_000
URL = {"url": "https://example.com/hook"}
BODY = {"model": "words", "input": "eins zwei", "background": True}


@pytest.fixture
def limited(web_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API with small limits, whose calls wait for their turn at a limit however busy the machine is."""
    monkeypatch.setattr(app, "STATEMENT_TIMEOUT_S", 60.0)
    limits = {
        "tenant_queued_requests": MOST_QUEUED,
        "waiting_calls": 7,  # of which one tenant has MOST_WAITING,
        "tenant_file_bytes": MOST_BYTES,
        "max_body_bytes": 600_000,
        "wait_s": 2.0,
    }
    yield from running_api(web_settings.model_copy(update=limits))


def at_once(api: Api, call: Callable[[Api, int], ApiAnswer]) -> Counter[int]:
    """The statuses of CALLS calls that begin at the same time, counted."""
    begin = Barrier(CALLS)

    def one(number: int) -> int:
        client = Api(api.client.application.test_client(), api.engine, api.key)
        begin.wait(60)
        return call(client, number).status_code

    with ThreadPoolExecutor(CALLS) as threads:
        return Counter(threads.map(one, range(CALLS)))


def upload(api: Api, lines: int = 10) -> ApiAnswer:
    content = b"".join(b'{"a": "%s"}\n' % (b"x" * 50_000) for _ in range(lines))
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    form = part % (b"purpose", b"batch") + part % (b'file"; filename="f.jsonl', content) + b"--b--\r\n"
    return api.call("POST", "/v1/files", data=form, content_type="multipart/form-data; boundary=b")


def new_batch(api: Api, file_id: str) -> ApiAnswer:
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return api.call("POST", "/v1/batches", json=body)


def test_webhook_endpoints(limited: Api) -> None:
    statuses = at_once(limited, lambda api, _: api.call("POST", "/v1/magnus/webhooks", json=URL))
    assert statuses == {200: MOST_ENDPOINTS, 400: CALLS - MOST_ENDPOINTS}
    assert limited.sql("select count(*) from webhook_endpoints") == [(MOST_ENDPOINTS,)]


def submit(api: Api, _: int = 0) -> ApiAnswer:
    return api.call("POST", "/v1/responses", json=BODY)


def in_a_process_that_begins(limited: Api, settings: Settings, call: Callable[[Api, int], ApiAnswer]) -> Counter[int]:
    """Runs `at_once` in another process of the same service, and returns its result."""
    (statuses,) = [at_once(Api(other.client, other.engine, limited.key), call) for other in running_api(settings)]
    return statuses


def test_queued_requests(limited: Api) -> None:
    assert at_once(limited, submit) == {200: MOST_QUEUED, 429: CALLS - MOST_QUEUED}
    assert limited.sql("select count(*) from requests") == [(MOST_QUEUED,)]


def test_queued_requests_in_a_process_that_has_counted_nothing_yet(limited: Api, web_settings: Settings) -> None:
    for _ in range(MOST_QUEUED - 2):
        submit(limited)
    settings = web_settings.model_copy(update={"tenant_queued_requests": MOST_QUEUED})
    assert in_a_process_that_begins(limited, settings, submit) == {200: 2, 429: CALLS - 2}


def test_the_rate_of_a_tenant_also_in_a_process_that_begins(limited: Api, web_settings: Settings) -> None:
    limited.sql("insert into tenants (name, requests_per_minute) values ('acme', 10)")
    limited.sql("delete from rate_counts")
    for _ in range(7):
        limited.call("GET", "/v1/models")
    statuses = in_a_process_that_begins(limited, web_settings, lambda api, _: api.call("GET", "/v1/models"))
    assert statuses == {200: 3, 429: CALLS - 3}


def test_waiting_calls(limited: Api) -> None:
    limited.sql("insert into tenants (name, queued_requests) values ('acme', 1000)")
    chat = {"model": "words", "messages": [{"role": "user", "content": "eins"}]}
    statuses = at_once(limited, lambda api, _: api.call("POST", "/v1/chat/completions", json=chat))
    assert statuses[504] >= 1
    ((stored,),) = limited.sql("select count(*) from requests")
    assert stored == statuses[504]
    assert statuses[429] == CALLS - stored


def test_bytes_of_files_also_of_those_in_upload(limited: Api) -> None:
    statuses = at_once(limited, lambda api, _: upload(api))
    ((stored, files),) = limited.sql("select sum(octet_length(data)), count(distinct file_id) from file_chunks")
    assert MOST_BYTES - CHUNK_BYTES < stored <= MOST_BYTES
    assert statuses == {200: files, 400: CALLS - files}
    assert limited.sql("select count(*) from files") == [(files,)]


def test_a_deleted_file_counts_until_the_batches_made_from_it_have_ended(limited: Api) -> None:
    file = upload(limited, 30).json["id"]
    batch = new_batch(limited, file).json["id"]
    limited.call("DELETE", f"/v1/files/{file}")
    assert upload(limited, 30).json["error"]["code"] == "storage_full"
    limited.sql("update bulk_jobs set status = 'completed' where id = :id", id=batch)
    assert upload(limited, 30).status_code == 200


def test_batches_that_have_not_ended(limited: Api) -> None:
    file = upload(limited, 1).json["id"]
    limited.sql(
        """insert into bulk_jobs (id, tenant, endpoint, input_file_id, completion_window, lines, last_line, expires_at)
        select 'b' || n, 'acme', '', :file, '24h', 1, 1, clock_timestamp() from generate_series(1, :some) n""",
        file=file,
        some=MOST_UNENDED - 4,
    )
    statuses = at_once(limited, lambda api, _: new_batch(api, file))
    assert statuses == {200: 4, 429: CALLS - 4}
    assert limited.sql("select count(*) from bulk_jobs") == [(MOST_UNENDED,)]


def test_calls_that_wait_for_another_call_of_their_tenant_leave_connections_to_strangers(limited: Api) -> None:
    file, stranger = upload(limited, 1).json["id"], limited.other_tenant()
    calls: list[Callable[[Api], ApiAnswer]] = [
        lambda api: new_batch(api, file),
        lambda api: upload(api, 1),
        lambda api: api.call("POST", "/v1/magnus/webhooks", json=URL),
        lambda api: api.call("POST", "/v1/responses", json=BODY | {"service_tier": "priority"}),
    ]
    with ExitStack() as ended, limited.engine.connect() as another_process:
        threads = ended.enter_context(ThreadPoolExecutor(CALLS))
        ended.callback(another_process.rollback)
        for counted in ("bulk jobs", "bytes of files", "webhook endpoints", "priority requests"):
            lock = text("select pg_advisory_xact_lock(hashtextextended(:counted, 0))")
            another_process.execute(lock, {"counted": f"{counted} of acme"})
        for call in calls * (CALLS // len(calls)):
            threads.submit(call, Api(limited.client.application.test_client(), limited.engine, limited.key))
        while waiting(limited) < AT_ONCE:
            time.sleep(0.05)
        assert [stranger.call("GET", "/v1/responses").status_code for _ in range(20)] == [200] * 20
        assert waiting(limited) == AT_ONCE


def waiting(api: Api) -> int:
    """How many connections wait for a lock of a tenant."""
    ((waiting,),) = api.sql("select count(*) from pg_locks where locktype = 'advisory' and not granted")
    return int(waiting)


def test_requests_of_one_idempotency_key(limited: Api) -> None:
    key = {"Idempotency-Key": "one"}
    statuses = at_once(limited, lambda api, _: api.call("POST", "/v1/responses", json=BODY, headers=key))
    assert limited.sql("select count(*) from requests") == [(1,)]
    assert set(statuses) <= {200, 429}


def test_batches_of_one_idempotency_key(limited: Api) -> None:
    file = upload(limited, 1).json["id"]
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    key = {"Idempotency-Key": "one"}
    statuses = at_once(limited, lambda api, _: api.call("POST", "/v1/batches", json=body, headers=key))
    assert statuses == {200: CALLS}
    assert limited.sql("select count(*) from bulk_jobs") == [(1,)]


def test_a_stream_that_fails_before_its_first_byte_frees_its_slot(
    limited: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise OperationalError("select", {}, Exception("away"))

    limited.sql("insert into tenants (name, queued_requests) values ('acme', 1000)")
    stored = limited.call("POST", "/v1/responses", json=BODY).json["id"]
    with monkeypatch.context() as patched:
        patched.setattr(responses_api, "place_in_queue", away)
        for _ in range(2 * MOST_WAITING):
            assert limited.call("GET", f"/v1/responses/{stored}?stream=true").status_code == 503
            streamed = limited.call("POST", "/v1/responses", json=BODY | {"background": False, "stream": True})
            assert streamed.status_code == 503
    limited.call("POST", f"/v1/responses/{stored}/cancel")
    for _ in range(2 * MOST_WAITING):
        answer = limited.call("GET", f"/v1/responses/{stored}?stream=true")
        assert answer.status_code == 200
        answer.close()
    assert limited.sql("select distinct status from requests") == [("cancelled",)]
