"""A tenant's limits of generated tokens and GPU-seconds a minute: charged as predicted, settled at the end."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from models import request_predictions
from models.connections.session import make_sessions
from models.leasing import batch_results
from models.leasing.batch_results import Answer, RowReturned
from models.leasing.leases import Lease
from models.tables import RequestStatus
from models.tenants import tenant_limits
from settings import Settings
from tests.integration.api_service import Api, ApiAnswer
from webapp.app import KEYS_TTL_S, create_app

# Without any answer from which to predict, a request is charged its limit of tokens.
EACH = 10


@pytest.fixture
def limited(api: Api) -> Api:
    """The API, with 40 generated tokens a minute for the tenant `acme`."""
    set_limits(api, generated_tokens_per_minute=40)
    return api


def set_limits(api: Api, **most: int) -> None:
    """Sets the limits of the tenant `acme` as `magnus tenant set` does, and waits until they hold."""
    none = dict.fromkeys(("generated_tokens_per_minute", "gpu_seconds_per_minute"))
    with make_sessions(api.engine).begin() as session:
        tenant_limits.change_tenant(session, "acme", {**none, **most})
    api.call("GET", "/v1/models")
    Event().wait(KEYS_TTL_S)


def post(api: Api, tokens: int = EACH, **arguments: object) -> ApiAnswer:
    body = {"model": "words", "input": "eins zwei", "background": True, "max_output_tokens": tokens}
    return api.call("POST", "/v1/responses", json=body, **arguments)


def end(api: Api, answer: ApiAnswer, tokens: int | None, status: str = "completed") -> None:
    api.sql(
        "update requests set status = :status, output_tokens = :n, finished_at = clock_timestamp() where id = :id",
        status=status,
        n=tokens,
        id=answer.json["id"],
    )


def predict(api: Api, *tokens: int) -> None:
    """Writes lengths for the oldest requests without one, as a predictor does."""
    with api.engine.begin() as connection:
        claimed = request_predictions.claim_unpredicted(connection, len(tokens))
        lengths = {one.id: (each, each) for one, each in zip(claimed, tokens, strict=True)}
        assert request_predictions.write_predictions(connection, claimed, lengths, "v1") == len(tokens)


def charged(api: Api, unit: str = "tokens") -> float:
    ((amount,),) = api.sql("select sum(amount) from work_charges where tenant = 'acme' and unit = :unit", unit=unit)
    return amount or 0.0


def let_pass(api: Api, seconds: float) -> None:
    """Lets the charges of all requests be older by some seconds."""
    api.sql("update work_charges set at = at - make_interval(secs => :s)", s=seconds)


def test_requests_are_charged_as_predicted_and_refused_until_one_of_this_length_fits(limited: Api) -> None:
    assert post(limited, 25).status_code == 200
    let_pass(limited, 40)
    assert post(limited, 10).status_code == 200
    let_pass(limited, 10)
    refused = post(limited, 8)
    assert (refused.status_code, refused.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "35 of 40 generated tokens a minute, and this one 8" in refused.json["error"]["message"]
    assert refused.headers["Retry-After"] == "1"  # until then, the charges are predicted
    predict(limited, 25, 10)
    assert 5 <= int(post(limited, 8).headers["Retry-After"]) <= 10  # once the 25 tokens no longer count
    assert 45 <= int(post(limited, 35).headers["Retry-After"]) <= 50  # once the 10 tokens do not count either
    assert post(limited, 5).status_code == 200
    assert post(limited.other_tenant(), 60).status_code == 200
    let_pass(limited, 10)
    assert post(limited, 8).status_code == 200
    assert limited.sql("select count(*) from work_charges where at < now() - interval '1 minute'") == [(0,)]


def test_charges_that_expired_in_a_pause_are_deleted_in_parts(limited: Api) -> None:
    limited.sql("""insert into work_charges (tenant, at, unit, amount)
        select 'acme', now() - interval '2 min', 'tokens', 1 from generate_series(1, 2500)""")
    for left in (1500, 500, 0):
        assert post(limited, 1).status_code == 200
        assert limited.sql("select count(*) from work_charges where at < now() - interval '1 minute'") == [(left,)]


def test_a_longer_request_than_the_limit_runs_alone(limited: Api) -> None:
    assert post(limited, 60).status_code == 200
    assert post(limited, 1).status_code == 429
    let_pass(limited, 60)
    assert post(limited, 1).status_code == 200
    assert post(limited, 60).status_code == 429


def test_the_end_of_a_request_settles_its_charge(limited: Api) -> None:
    short, cancelled, long, _ = (post(limited) for _ in range(4))
    assert post(limited).status_code == 429
    end(limited, short, 3)
    end(limited, cancelled, None, "cancelled")
    end(limited, long, 14)
    assert charged(limited) == 3 + 0 + 14 + EACH
    let_pass(limited, 59.0)  # what was too long counts from its end on, the rest from the arrival on
    limited.sql("update work_charges set at = at + interval '59 s' where amount = 4")
    let_pass(limited, 1.0)
    assert post(limited, 37).status_code == 429
    assert post(limited, 36).status_code == 200


def test_a_prediction_replaces_the_charge_of_an_application_without_answers(limited: Api) -> None:
    before, _ = post(limited, 20), post(limited, 20)
    assert post(limited, 8).status_code == 429
    predict(limited, 3, 3)
    assert charged(limited) == 3 + 3
    let_pass(limited, 30)
    end(limited, before, 7)
    assert charged(limited) == 7 + 3
    let_pass(limited, 30)
    assert post(limited, 37).status_code == 429  # the 4 tokens beyond the prediction count from the end on
    assert post(limited, 36).status_code == 200


def test_gpu_seconds_are_charged_by_the_tenants_latest_answers_and_settled_as_measured(limited: Api) -> None:
    set_limits(limited, gpu_seconds_per_minute=6)
    first = post(limited, 60)  # no answer says yet what a token takes
    limited.sql("""insert into usage_days (day, tenant, model, requests, prompt_tokens, answer_tokens, gpu_s)
        values ((clock_timestamp() at time zone 'UTC')::date, 'acme', 'words', 1, 1, 100, 10)""")
    second = post(limited, 40)
    predict(limited, 60, 40)
    assert charged(limited, "gpu_s") == pytest.approx(40 * 0.1)
    refused = post(limited, 40)
    assert "4 of 6 GPU-seconds a minute, and this one 4." in refused.json["error"]["message"]
    assert 55 <= int(refused.headers["Retry-After"]) <= 60
    limited.sql("update requests set status = 'in_progress', batch_id = 1")
    with limited.engine.begin() as connection:
        returned = [RowReturned(Lease(1, 1), second.json["id"], (7,), gpu_s=0.5)]
        batch_results.write_returned(connection, returned, 0.0)
    assert charged(limited, "gpu_s") == pytest.approx(40 * 0.1)
    limited.sql("update requests set status = 'in_progress', batch_id = 1")
    with limited.engine.begin() as connection:
        for answer, gpu_s in ((first, 0.25), (second, 1.0)):
            done = Answer(Lease(1, 1), answer.json["id"], RequestStatus.completed, "a", 9, "eos", 0.0, gpu_s=gpu_s)
            batch_results.write_answers(connection, [done])
    assert charged(limited, "gpu_s") == pytest.approx(0.25 + 0.5 + 1.0)
    assert post(limited, 40).status_code == 200
    assert post(limited, 40).status_code == 429


def test_a_request_that_is_not_stored_is_not_charged(limited: Api) -> None:
    key = {"Idempotency-Key": "once"}
    assert len({post(limited, headers=key).json["id"] for _ in range(3)}) == 1
    assert charged(limited) == EACH
    assert post(limited, 64 + 1).status_code == 400
    assert charged(limited) == EACH


def test_calls_of_two_processes_at_once_do_not_exceed_the_limit(limited: Api, web_settings: Settings) -> None:
    apps, begin = (limited.client.application, create_app(web_settings)), Barrier(16)

    def one(number: int) -> int:
        client = Api(apps[number % 2].test_client(), limited.engine, limited.key)
        begin.wait(60)
        return post(client).status_code

    with ThreadPoolExecutor(16) as threads:
        statuses = list(threads.map(one, range(16)))
    apps[1].extensions["magnus"].close()
    assert sorted(statuses) == [200] * 4 + [429] * 12
    assert charged(limited) == 4 * EACH


def test_the_prediction_is_the_applications_recent_answers_by_input_length(
    limited: Api, web_settings: Settings
) -> None:
    for words in (1, 2, 3, 4) * 2:  # as many answers as an application needs for a line of its own
        answer = post(limited)
        limited.sql("update requests set input_tokens = :n where id = :id", n=words, id=answer.json["id"])
        end(limited, answer, 3 * words)
        let_pass(limited, 60)
    app = create_app(web_settings)  # a process that reads these answers
    answer = post(Api(app.test_client(), limited.engine, limited.key))
    app.extensions["magnus"].close()
    predict(limited, 9)
    stored = limited.sql("select charge->'tokens', input_tokens from requests where id = :id", id=answer.json["id"])
    assert stored == [(6, 2)]


def test_without_a_limit_nothing_is_charged(limited: Api) -> None:
    set_limits(limited)
    for _ in range(6):
        post(limited)
    assert charged(limited) == 0
    with make_sessions(limited.engine)() as session:
        assert tenant_limits.check_work(session, "acme", "words", 10**6) is None
