"""Which requests of the API count as equal, and what each of them shows of the other."""

from typing import Any

import pytest

from tasks.planning.leader import Leader
from tests.integration.api_service import Api
from tests.integration.database_stage import Stage, eventually
from tests.integration.planner_stage import RULES


def groups(api: Api) -> list[str | None]:
    """The digests of the stored requests by arrival."""
    return [row[0] for row in api.sql("select encode(twin_sha256, 'hex') from requests order by arrived_at")]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"metadata": {"application": "other", "user": "me"}},
        {"temperature": 0.0},
        {"temperature": 0},
        {"magnus": {"deadline_s": 60.0}},
    ],
)
def test_requests_with_the_same_answer_are_equal(api: Api, fields: dict[str, Any]) -> None:
    api.submit()
    api.submit(**fields)
    first, second = groups(api)
    assert first is not None
    assert first == second


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "eins zwei vier"},
        {"instructions": "Repeat."},
        {"max_output_tokens": 7},
        {"service_tier": "flex"},
        {"magnus": {"priority": 1}},
        {"temperature": 0.7, "magnus": {"seed": 5}},
        {"magnus": {"stop": ["x"]}},
    ],
)
def test_requests_with_another_answer_or_turn_are_not_equal(api: Api, fields: dict[str, Any]) -> None:
    api.submit()
    api.submit(**fields)
    first, second = groups(api)
    assert second is not None
    assert first != second


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.7}, {"magnus": {"twins": False}}, {"temperature": 1.0, "top_p": 0.5}]
)
def test_sampled_requests_and_those_that_ask_for_it_share_nothing(api: Api, fields: dict[str, Any]) -> None:
    api.submit(**fields)
    assert groups(api) == [None]


def test_the_same_seed_samples_the_same_answer(api: Api) -> None:
    for seed in (5, 5, 6):
        api.submit(temperature=0.7, magnus={"seed": seed})
    first, second, third = groups(api)
    assert first == second != third


def test_a_chat_is_no_twin_of_a_tenants_stream_or_of_another_tenant(api: Api) -> None:
    """Equal bodies of two tenants have the same digest; the planner compares tenants, too."""
    api.submit()
    api.other_tenant().submit()
    leader = Leader(api.engine, RULES)
    api.sql("update requests set predicted_tokens = 3, predicted_upper_tokens = 3")
    leader.step()
    leader.resign()
    assert api.sql("select twin_of from requests") == [(None,), (None,)]


def test_a_twin_names_the_request_whose_answer_it_gets_and_what_it_did_not_compute(api: Api) -> None:
    first, second = api.submit(), api.submit(metadata={"own": "yes"})
    api.sql("update requests set predicted_tokens = 3, predicted_upper_tokens = 3")
    Stage(api.engine).worker(model=first["model"])
    leader = Leader(api.engine, RULES)
    leader.step()
    waiting = api.call("GET", f"/v1/responses/{second['id']}").json
    assert (waiting["status"], waiting["magnus"]["twin_of"]) == ("queued", first["id"])
    assert waiting["magnus"]["waits_for"] == f"It gets the answer of {first['id']}."
    api.sql(
        """update requests set status = 'completed', output_text = 'one', output_tokens = 1, finish_reason = 'eos',
        finished_at = clock_timestamp() where id = :id""",
        id=first["id"],
    )
    eventually(lambda: leader.step() or True)
    leader.resign()
    twin = api.call("GET", f"/v1/responses/{second['id']}").json
    assert (twin["status"], twin["magnus"]["twin_of"], twin["metadata"]) == ("completed", first["id"], {"own": "yes"})
    assert twin["output"][0]["content"][0]["text"] == "one"
    usage = twin["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] > 0
