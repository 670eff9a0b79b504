"""Calls and chores hold a database connection for statements only: nobody holds one while it takes another one."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread, local
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import event

from models.bulk.bulk_jobs import MOST_UNENDED
from models.connections.session import make_engine
from settings import Settings
from tasks.chores.job_progress import update_jobs
from tasks.chores.scaling_signals import ScalingMeter
from tasks.chores.upkeep import do_upkeep
from tests.integration.api.test_api_uploads import upload
from tests.integration.api_service import Api, finish
from tests.integration.bulk_stage import BulkStage, chat_line, jsonl
from tests.integration.conftest import running_api
from tests.integration.tenants.test_tenant_isolation import CHANGING, MAKING, make_batch
from webapp import app

BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.fixture
def lonely(web_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The API with one database connection, for which a call waits at most two seconds."""
    monkeypatch.setattr(app, "CONNECTIONS", 1)
    monkeypatch.setattr(app, "CONNECTION_WITHIN_S", 2.0)
    yield from running_api(web_settings)


def second_connections(api: Api) -> list[str]:
    """The names of threads that take a connection while they hold another one, as they do it."""
    held, found = local(), list[str]()
    pool = api.client.application.extensions["magnus"].database.pool

    def take(connection: Any, record: Any, proxy: Any) -> None:
        held.number = getattr(held, "number", 0) + 1
        if held.number > 1:
            found.append(current_thread().name)

    def give_back(connection: Any, record: Any) -> None:
        held.number -= 1

    event.listen(pool, "checkout", take)
    event.listen(pool, "checkin", give_back)
    return found


def test_batches_whose_lines_name_another_model(lonely: Api) -> None:
    file = upload(lonely, jsonl(chat_line(str(n), model=f"adapter-{n}") for n in range(3))).json["id"]
    created = lonely.call("POST", "/v1/batches", json=BATCH | {"input_file_id": file})
    assert (created.status_code, created.json["status"]) == (200, "validating")
    dry = lonely.call("POST", "/v1/batches", json=BATCH | {"input_file_id": file, "magnus": {"dry_run": True}})
    assert [error["code"] for error in dry.json["errors"]["data"]] == 3 * ["model_not_found"]


def test_many_batches_at_once(api: Api) -> None:
    file = upload(api, jsonl([chat_line("a", model="adapter")])).json["id"]

    def create(number: int) -> int:
        client = Api(api.client.application.test_client(), api.engine, api.key)
        key = {"Idempotency-Key": str(number)}
        return client.call("POST", "/v1/batches", json=BATCH | {"input_file_id": file}, headers=key).status_code

    with ThreadPoolExecutor(160) as threads:
        assert Counter(threads.map(create, range(160))) == {200: MOST_UNENDED, 429: 160 - MOST_UNENDED}


@pytest.mark.unanswered
def test_no_call_takes_a_second_connection(api: Api, bulk: BulkStage, web_settings: Settings) -> None:
    response, (file, batch) = api.submit()["id"], make_batch(api)
    webhook = api.call("POST", "/v1/magnus/webhooks", json={"url": "https://example.com/"}).json["id"]
    bulk.feed()
    finish(api, response)
    ids = {"files": file, "batches": batch, "webhooks": webhook, "models": "words"}
    operator: FlaskClient = api.client.application.test_client()
    second = second_connections(api)
    assert web_settings.dashboard_password is not None
    operator.post("/sign-in", data={"secret": web_settings.dashboard_password.get_secret_value()})
    seen, found = Counter[int](), list[tuple[str, str]]()
    rules = api.client.application.url_map.iter_rules()
    for rule in sorted(rules, key=lambda rule: ("DELETE" in (rule.methods or ()), rule.rule)):
        of = next((one for name, one in ids.items() if f"/{name}/" in rule.rule), response)
        path = re.sub("<.*?>", of, rule.rule.replace("<int:delivery>", "1"))
        for method in sorted((rule.methods or set()) & {"GET", "POST", "DELETE"}):
            body = (MAKING | CHANGING).get((method, path.replace(of, "{id}")))
            of_api = path.startswith(("/v1/", "/tokenize", "/detokenize"))
            answer = api.call(method, path, json=body) if of_api else operator.open(path, method=method)
            seen[answer.status_code] += 1
            found += [(method, rule.rule)] * bool(second)
            second.clear()
    assert found == []
    assert seen[200] > 40
    assert not seen.keys() & {500, 503}


def test_no_chore_takes_a_second_connection(api: Api, bulk: BulkStage) -> None:
    make_batch(api)
    bulk.feed()  # with a pool of one
    bulk.answer()
    engine = make_engine(api.engine.url.render_as_string(False), pool_size=1, pool_timeout_s=1.0)
    for _ in range(3):
        api.sql("update bulk_jobs set look_at = clock_timestamp()")
        update_jobs(engine, 60.0)
    ScalingMeter(engine, 10.0, 10.0).measure_if_due()
    do_upkeep(engine, 0.0)
    engine.dispose()
    assert api.sql("select count(*) from bulk_jobs") == [(0,)]
