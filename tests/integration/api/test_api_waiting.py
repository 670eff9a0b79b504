"""Calls that wait: woken at an answer's end, as patient as they ask to be, and the same job for the same key."""

import threading
from collections.abc import Callable

import pytest

from models import notifications
from settings import Settings
from tests.integration.answering_worker import end
from tests.integration.api_service import Api
from tests.integration.database_stage import eventually
from webapp.app import create_app

CHAT = {"model": "words", "messages": [{"role": "user", "content": "eins"}]}
KEY = {"Idempotency-Key": "a-key"}


def end_all(api: Api) -> None:
    """Ends all answers as a worker does."""
    end(
        api,
        """update requests set status = 'completed', output_text = 'one', output_tokens = 1,
        finished_at = clock_timestamp() where status = 'queued' returning id""",
    )


@pytest.mark.unanswered
def test_a_retry_under_its_key_waits_for_the_job_that_runs_already(api: Api) -> None:
    first = api.call("POST", "/v1/chat/completions", json=CHAT, headers=KEY)
    assert first.status_code == 504
    assert "Idempotency-Key" in first.json["error"]["message"]
    assert "x-should-retry" not in first.headers
    cancelled = api.call("POST", "/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": "b"}]})
    assert (cancelled.status_code, cancelled.headers["x-should-retry"]) == (504, "false")
    assert [row.status for row in api.sql("select status from requests order by arrived_at")] == ["queued", "cancelled"]
    end_all(api)
    second = api.call("POST", "/v1/chat/completions", json=CHAT, headers=KEY)
    assert (second.status_code, second.json["choices"][0]["message"]["content"]) == (200, "one")
    assert len(api.sql("select id from requests")) == 2


def fail_all(api: Api, code: str) -> None:
    """Fails all requests as the reconciler or a worker does."""
    end(
        api,
        f"""update requests set status = 'failed', finished_at = clock_timestamp(),
        error = jsonb_build_object('code', '{code}', 'message', 'Why.') where status = 'queued' returning id""",
    )


@pytest.mark.unanswered
@pytest.mark.parametrize("code", ["deadline_exceeded", "server_error", "out_of_memory"])
def test_a_key_whose_request_the_service_failed_is_free_for_another_try(api: Api, code: str) -> None:
    body, path = {"model": "words", "input": "a", "background": True}, "/v1/responses"
    first = api.call("POST", path, json=body, headers=KEY).json["id"]
    fail_all(api, code)
    again = api.call("POST", path, json=body, headers=KEY).json
    assert (again["id"] != first, again["status"]) == (True, "queued")
    assert api.call("POST", path, json=body, headers=KEY).json["id"] == again["id"]
    assert api.call("GET", f"{path}/{first}").json["status"] == "failed"
    different = api.call("POST", path, json=body | {"input": "b"}, headers=KEY)
    assert different.status_code == 422


@pytest.mark.unanswered
@pytest.mark.parametrize("tier", ["default", "priority"])
def test_one_of_several_answers_that_the_service_failed_is_tried_again_alone(api: Api, tier: str) -> None:
    asked = CHAT | {"n": 3, "service_tier": tier}
    assert api.call("POST", "/v1/chat/completions", json=asked, headers=KEY).status_code == 504
    ids = [row.id for row in api.sql("select id from requests order by arrived_at, id")]
    assert len(ids) == 3
    api.sql(
        """update requests set status = 'failed', finished_at = clock_timestamp(), error = '{"code": "server_error"}'
        where id = :id""",
        id=ids[1],
    )
    assert api.call("POST", "/v1/chat/completions", json=asked, headers=KEY).status_code == 504
    end_all(api)
    answer = api.call("POST", "/v1/chat/completions", json=asked, headers=KEY)
    assert (answer.status_code, len(answer.json["choices"])) == (200, 3)
    assert api.sql("select count(*) from requests")[0][0] == 4


@pytest.mark.unanswered
def test_a_key_whose_prompt_was_refused_gives_the_same_and_says_so(api: Api) -> None:
    assert api.call("POST", "/v1/chat/completions", json=CHAT, headers=KEY).status_code == 504
    fail_all(api, "invalid_prompt")
    error = api.call("POST", "/v1/chat/completions", json=CHAT, headers=KEY)
    assert (error.status_code, "send another key" in error.json["error"]["message"]) == (502, True)
    assert api.sql("select count(*) from requests")[0][0] == 1


@pytest.fixture
def patient(web_settings: Settings, api: Api):
    """The API whose calls wait for a minute."""
    app = create_app(web_settings.model_copy(update={"wait_s": 60.0}))
    yield Api(app.test_client(), api.engine, api.key)
    app.extensions["magnus"].close()


@pytest.mark.parametrize("prefer", ["wait=60", "respond-async, wait=30", 'WAIT="999999999"', "wait = 9;foo=1, x"])
def test_a_retrieval_waits_for_the_end_as_long_as_its_client_prefers(patient: Api, prefer: str):
    created = patient.submit()
    answers = []
    call = threading.Thread(
        target=lambda: answers.append(patient.call("GET", f"/v1/responses/{created['id']}", headers={"Prefer": prefer}))
    )
    call.start()
    eventually(lambda: patient.sql("select 1 from pg_stat_activity where application_name = 'magnus web listens'"))
    end_all(patient)
    call.join()
    assert answers[0].json["status"] == "completed"
    assert answers[0].headers["Preference-Applied"].startswith("wait=")


@pytest.mark.parametrize("prefer", ["wait=0", "", "wait=-1", "await=9", "wait=x", "respond-async"])
def test_without_a_preference_a_retrieval_does_not_wait(patient: Api, prefer: str):
    created = patient.submit()
    answer = patient.call("GET", f"/v1/responses/{created['id']}", headers={"Prefer": prefer})
    assert answer.json["status"] == "queued"
    assert "Preference-Applied" not in answer.headers


def test_a_call_waits_no_longer_than_its_client_prefers(patient: Api):
    body = {"model": "words", "input": "eins"}
    answer = patient.call("POST", "/v1/responses", json=body, headers={"Prefer": "wait=1"})
    assert answer.json["status"] == "queued"


def answered(api: Api, meanwhile: Callable[[], object]) -> str:
    """The text that a waiting call gets when its answer ends after `meanwhile`."""
    answers = []
    call = threading.Thread(
        target=lambda: answers.append(api.call("POST", "/v1/chat/completions", json=CHAT).json["choices"][0])
    )
    call.start()
    eventually(lambda: api.sql("select id from requests where status = 'queued'"))
    meanwhile()
    end_all(api)
    call.join()
    return str(answers[0]["message"]["content"])


def test_a_cut_connection_is_made_again_and_nobody_waits_in_vain(patient: Api):
    def cut() -> None:
        cut_off = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'magnus web listens'"
        eventually(lambda: patient.sql(cut_off))

    assert answered(patient, cut) == "one"


def test_behind_a_pooler_waiting_calls_look_for_themselves(patient: Api, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifications, "is_pooled", lambda connection: True)
    assert answered(patient, lambda: None) == "one"
