"""Submit, poll, list, cancel and delete over the real API and a real Postgres."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from request_body import read_body
from tests.integration.api_service import Api, finish


def test_a_submitted_request_is_queued_and_stored_before_the_answer(api: Api) -> None:
    created = api.submit(metadata={"application": "translation", "ticket": "7"})
    assert created["status"] == "queued"
    assert created["object"] == "response"
    assert re.fullmatch("resp_[0-9a-f]{32}", created["id"])
    assert created["metadata"] == {"application": "translation", "ticket": "7"}
    assert created["magnus"]["application"] == "translation"
    assert created["magnus"]["prompt_tokens"] == 5  # Translate . eins zwei drei
    [row] = api.sql("select tenant, instructions, input, prompt_tokens, input_tokens, limit_tokens, body from requests")
    assert (row.tenant, row.instructions, row.input) == ("acme", "Translate.", "eins zwei drei")
    assert (row.prompt_tokens, row.input_tokens, row.limit_tokens) == (5, 3, 64)
    assert "sampling" not in row.body


def test_sampling_and_our_own_fields_reach_the_row(api: Api) -> None:
    api.submit(
        temperature=0.7,
        top_p=0.9,
        max_output_tokens=9,
        magnus={"priority": 3, "deadline_s": 60, "seed": 5, "stop": ["END"], "top_k": 40},
    )
    [row] = api.sql(
        "select limit_tokens, priority, body, extract(epoch from deadline_at - arrived_at)::float8 as s from requests"
    )
    assert row.limit_tokens == 9
    assert row.priority == 3
    assert row.body["sampling"] == {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 5}
    assert row.body["stop"] == ["END"]
    assert row.s == pytest.approx(60, abs=0.1)


def test_a_completed_response_carries_its_text_and_its_usage(api: Api) -> None:
    made = api.submit()["id"]
    finish(api, made)
    answer = api.call("GET", f"/v1/responses/{made}")
    assert "Retry-After" not in answer.headers
    body = answer.json
    assert body["status"] == "completed"
    assert body["output"][0]["content"][0]["text"] == "one two"
    assert body["usage"]["input_tokens"] == 5
    assert body["usage"]["output_tokens"] == 2
    assert body["usage"]["total_tokens"] == 7
    assert body["incomplete_details"] is None


def test_a_response_cut_off_at_its_limit_says_so(api: Api) -> None:
    made = api.submit()["id"]
    finish(api, made, status="incomplete")
    body = api.call("GET", f"/v1/responses/{made}").json
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"


def test_a_failed_response_says_why(api: Api) -> None:
    made = api.submit()["id"]
    api.sql(
        """update requests set status = 'failed', finished_at = clock_timestamp(),
        error = '{"code": "deadline_exceeded", "message": "Too late."}' where id = :id""",
        id=made,
    )
    body = api.call("GET", f"/v1/responses/{made}").json
    assert body["error"] == {"code": "deadline_exceeded", "message": "Too late."}
    assert body["output"] == []


def test_retry_after_is_the_estimate_of_the_planners_snapshot(api: Api) -> None:
    first, second, unlisted = (api.submit()["id"] for _ in range(3))
    state = {
        "version": 3,
        "queue": {
            "requests": 2,
            "backlog_s": 30.0,
            "batches": [
                {"ids": [first], "size": 1, "starts_in_s": 2.0, "estimated_s": 3.0},
                {"ids": [second], "size": 1, "starts_in_s": 5.0, "estimated_s": 9.0},
            ],
        },
    }
    api.sql(
        "insert into service_state (name, value) values ('planner', cast(:state as jsonb))", state=json.dumps(state)
    )
    # the snapshot is read at most twice a second, so ask until it is seen
    deadline = time.monotonic() + 10
    while (answer := api.call("GET", f"/v1/responses/{second}")).json["magnus"]["queue_position"] is None:
        assert time.monotonic() < deadline
    magnus = answer.json["magnus"]
    assert magnus["queue_position"] == 2
    assert magnus["eta_s"] == pytest.approx(14, abs=2)
    assert 12 <= int(answer.headers["Retry-After"]) <= 14
    magnus = api.call("GET", f"/v1/responses/{first}").json["magnus"]
    assert (magnus["queue_position"], magnus["eta_s"]) == (1, pytest.approx(5, abs=2))
    behind = api.call("GET", f"/v1/responses/{unlisted}").json["magnus"]
    assert behind["queue_position"] is None
    assert behind["eta_s"] == pytest.approx(36, abs=2)  # the backlog of 30 s and a typical batch of 6 s


def test_without_a_recent_snapshot_nothing_is_promised(api: Api) -> None:
    api.sql(
        """insert into service_state (name, value, updated_at) values
        ('planner', '{"version": 3, "queue": {"backlog_s": 1}}', clock_timestamp() - interval '1 minute')"""
    )
    made = api.submit()["id"]
    answer = api.call("GET", f"/v1/responses/{made}")
    assert (answer.json["magnus"]["queue_position"], answer.json["magnus"]["eta_s"]) == (None, None)
    assert answer.headers["Retry-After"] == "1"


def test_a_running_response_shows_its_batch_worker_and_progress(api: Api) -> None:
    made = api.submit()["id"]
    [[batch]] = api.sql(
        """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
            started_at, progress_tokens)
        values ('w1', 'magnus', 'running', 1, 5, 20, 8.0, clock_timestamp(), 12) returning id"""
    )
    api.sql(
        """update requests set status = 'in_progress', batch_id = :batch, predicted_tokens = 20,
        predicted_upper_tokens = 30, predictor_version = 'v1', attempts = 1 where id = :id""",
        id=made,
        batch=batch,
    )
    answer = api.call("GET", f"/v1/responses/{made}")
    magnus = answer.json["magnus"]
    assert answer.json["status"] == "in_progress"
    assert (magnus["batch"], magnus["worker"], magnus["tokens_so_far"]) == (batch, "w1", 12)
    assert (magnus["predicted_tokens"], magnus["predicted_upper_tokens"]) == (20, 30)
    assert 1 <= int(answer.headers["Retry-After"]) <= 8
    assert api.call("DELETE", f"/v1/responses/{made}").status_code == 409
    assert api.call("POST", f"/v1/responses/{made}/cancel").json["status"] == "in_progress"
    [row] = api.sql("select cancel_requested_at from requests")
    assert row.cancel_requested_at is not None


def test_a_retried_post_with_an_idempotency_key_gives_the_first_response_again(api: Api) -> None:
    body = {"model": "words", "input": "a", "background": True}
    headers = {"Idempotency-Key": "k1"}
    first = api.call("POST", "/v1/responses", json=body, headers=headers).json
    again = api.call("POST", "/v1/responses", json=dict(reversed(body.items())), headers=headers).json
    assert again["id"] == first["id"]
    different = api.call("POST", "/v1/responses", json=body | {"input": "b"}, headers=headers)
    assert different.status_code == 422
    assert different.json["error"]["code"] == "idempotency_key_reused"
    elsewhere = api.other_tenant().call("POST", "/v1/responses", json=body, headers=headers).json
    assert elsewhere["id"] != first["id"]
    assert api.sql("select count(*) from requests")[0][0] == 2


def test_posts_that_race_with_one_idempotency_key_store_one_request(api: Api) -> None:
    def post(_: int) -> str:
        headers = {"Idempotency-Key": "race", "Authorization": f"Bearer {api.key}"}
        client = api.client.application.test_client()
        body = {"model": "words", "input": "a", "background": True}
        return str(client.post("/v1/responses", json=body, headers=headers).get_json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(post, range(8)))) == 1


def test_a_call_that_waits_gets_the_answer_when_it_is_there(api: Api) -> None:
    def serve() -> None:
        while not (rows := api.sql("select id from requests")):
            pass
        finish(api, rows[0].id, text="done")

    worker = threading.Thread(target=serve)
    worker.start()
    answer = api.call("POST", "/v1/responses", json={"model": "words", "input": "a"})
    worker.join()
    assert answer.json["status"] == "completed"
    assert answer.json["background"] is False
    assert answer.json["output"][0]["content"][0]["text"] == "done"


@pytest.mark.unanswered
def test_a_call_that_waited_too_long_gets_the_state_and_an_id_to_poll(api: Api) -> None:
    answer = api.call("POST", "/v1/responses", json={"model": "words", "input": "a", "background": False})
    assert answer.status_code == 200
    assert answer.json["status"] == "queued"
    assert answer.headers["Retry-After"] == "1"
    assert api.call("GET", f"/v1/responses/{answer.json['id']}").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-38, "top_p": 1e-38},
        {"temperature": 5e-324, "top_p": 5e-324},
        {"temperature": 2, "magnus": {"seed": 2**63 - 1, "top_k": 2**31 - 1}},
        {"magnus": {"deadline_s": 1e-9}},
        {"magnus": {"deadline_s": 5e-324}},
        {"magnus": {"stop": ["\u202e\u05d0\u05d1", "\U0001f469\u200d\U0001f680" * 20]}},
        {"input": "\u0645\u0631\u062d\u0628\u0627 \u202e" * 5 + "\U0001f525" * 30},
    ],
    ids=str,
)
def test_whatever_the_bounds_admit_is_accepted_and_stored(api: Api, fields: dict[str, Any]) -> None:
    body = api.submit(**fields)
    (stored,) = api.sql("select body from requests where id = :id", id=body["id"])[0]
    sampling = read_body(stored).sampling
    assert (sampling.temperature, sampling.top_p) == (fields.get("temperature", 0.0), fields.get("top_p", 1.0))


def test_every_answer_has_a_name_that_the_log_has_too(api: Api) -> None:
    names = {
        api.call(method, path).headers["x-request-id"]
        for method, path in (("GET", "/v1/models"), ("GET", "/v1/models/"), ("PUT", "/v1/models"), ("GET", "/health"))
    }
    assert len(names) == 4


def test_created_at_has_whole_seconds_and_magnus_the_rest(api: Api) -> None:
    created = api.submit()
    assert isinstance(created["created_at"], int)
    assert int(created["magnus"]["arrived_at"]) == created["created_at"]


def test_a_waiting_response_says_what_it_waits_for_and_why_answers_question_by_question(api: Api):
    response_id = api.submit("eins")["id"]
    assert "not predicted yet" in api.call("GET", f"/v1/responses/{response_id}").json["magnus"]["waits_for"]
    reasons = api.call("GET", f"/v1/responses/{response_id}/why").json
    assert [answer["blocks"] for answer in reasons["answers"]] == [True]
    api.sql("update requests set predicted_tokens = 3, predicted_upper_tokens = 4")
    assert (
        "No planner has reported" in api.call("GET", f"/v1/responses/{response_id}/why").json["answers"][-1]["sentence"]
    )
    finish(api, response_id)
    assert api.call("GET", f"/v1/responses/{response_id}").json["magnus"]["waits_for"] is None
    assert api.other_tenant().call("GET", f"/v1/responses/{response_id}/why").status_code == 404
