"""Tells a fault in the same words in `/readyz`, `magnus status`, `magnus doctor` and the overview, with the remedy."""

import html
import re
from collections.abc import Callable
from itertools import takewhile
from time import time

import psycopg
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from cli.checks.doctor_checks import findings
from models.connections.database_errors import DISK_FULL, NO_WRITES
from models.operations import process_heartbeats
from models.operations.fleet_use import ASK_THE_SAME
from models.registered_workers import REPAIR_ENGINE
from processes.loop import Loop
from settings import Settings
from tests.integration.api_service import Api
from tests.integration.database_stage import facts, insert_worker
from webapp.app import create_app


def full_disk(api: Api, settings: Settings) -> Settings:
    """A planner whose steps fail because Postgres cannot extend a file."""

    def step() -> None:
        raise OperationalError("insert", {}, psycopg.errors.DiskFull("could not extend file: No space left on device"))

    loop = Loop("planning", step, every_s=60.0)
    loop.step()
    loop.step()
    with api.engine.begin() as connection:
        process_heartbeats.write(connection, "planner", "host:1", time(), loop.failure)
    return settings


def engine_away(api: Api, settings: Settings) -> Settings:
    """A worker whose server does not answer."""
    api.sql("""update workers set report = '{"fault": "ConnectError"}'""")
    return settings


def nothing_answered(api: Api, settings: Settings) -> Settings:
    """A worker whose last answers are all empty."""
    api.submit()
    api.sql(
        """with given as (insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s)
            values ('w1', 'test', 9, 1, 1, 1.0) returning id)
        insert into requests (id, tenant, application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
            model, body, status, batch_id, output_text, output_tokens, finished_at)
        select 'e' || n, tenant, application, '', input, input_tokens, prompt_tokens, limit_tokens, model, body,
            'completed', given.id, '', 1, clock_timestamp()
        from requests, given, generate_series(1, 10) as n"""
    )
    return settings


def stand_by(api: Api, settings: Settings) -> Settings:
    """The settings of a service whose Postgres takes no writes."""
    url = make_url(settings.database_url or "").update_query_dict({"options": "-cdefault_transaction_read_only=on"})
    return settings.model_copy(update={"database_url": url.render_as_string(hide_password=False)})


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (full_disk, DISK_FULL),
        (engine_away, f"worker w1 is set aside; {REPAIR_ENGINE}"),
        (nothing_answered, f"worker w1 answers with nothing (10 of its last 10); {ASK_THE_SAME}"),
        (stand_by, NO_WRITES),
    ],
    ids=["full disk", "engine set aside", "empty answers", "no writes"],
)
def test_every_place_tells_a_fault_in_the_same_words_with_the_remedy(
    api: Api, web_settings: Settings, fault: Callable[[Api, Settings], Settings], sentence: str
) -> None:
    insert_worker(api.sql, facts(model="words"))
    settings = fault(api, web_settings)
    app = create_app(settings)
    service = Api(app.test_client(), api.engine, api.key)
    assert settings.dashboard_password is not None
    page = service.client.get("/", auth=("magnus", settings.dashboard_password.get_secret_value()))
    checked = takewhile(lambda finding: finding.check != "Redis", findings(settings))
    told = {
        "/readyz": str(service.call("GET", "/readyz").json),
        "status": str(service.call("GET", "/v1/magnus/stats").json),
        "doctor": " ".join(f"{one.found}; {one.remedy}" for one in checked),
        "overview": html.unescape(re.sub("<[^>]+>", "", page.get_data(as_text=True))),
    }
    assert {place: [part for part in sentence.split("; ") if part not in said] for place, said in told.items()} == {
        place: [] for place in told
    }
    assert sentence in told["/readyz"]
    app.extensions["magnus"].close()


def test_a_call_that_a_full_disk_refuses_is_told_so(api: Api) -> None:
    api.sql(
        """create function refuse() returns trigger language plpgsql as $$
        begin raise exception using message = 'could not extend file', errcode = 'disk_full'; end $$"""
    )
    api.sql("create trigger refuse before insert on requests for each row execute function refuse()")
    answer = api.call("POST", "/v1/responses", json={"model": "words", "input": "one", "background": True})
    assert (answer.status_code, answer.json["error"]["code"]) == (503, "database_unavailable")
    assert DISK_FULL in answer.json["error"]["message"]
