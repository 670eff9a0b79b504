"""How clients steer batches: pause, resume, another window, retry."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from models.connections.session import make_sessions
from models.operations.bulk_figures import bulk_figures
from models.tenants.api_keys import Scope
from protocol.limits.prompt_limits import PromptLimits
from tasks.chores.line_feeder import LineFeeder
from tasks.planning.leader import Leader
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, results
from tests.integration.database_stage import Stage


def act(api: Api, batch_id: str, action: str = "", status: int = 200, **body: str) -> dict[str, object]:
    answer = api.call("POST", f"/v1/batches/{batch_id}{action}", json=body or None)
    assert answer.status_code == status, answer.text
    content: dict[str, object] = answer.json
    return content


def served(stage: Stage, leader: Leader) -> set[str]:
    """The names of the lines that the planner gives to workers; they wait again afterwards."""
    stage.sql("update requests set predicted_tokens = 5, predicted_upper_tokens = 9")
    for name in "xyz":
        stage.worker(name, model=MODEL)
    leader.step()
    rows = stage.sql(
        "select custom_id from bulk_lines join requests r on r.id = request_id where status = 'in_progress'"
    )
    stage.sql("update requests set status = 'queued', planner_epoch = 0 where status = 'in_progress'")
    stage.sql("delete from batches")
    stage.sql("delete from workers")
    return {row.custom_id for row in rows}


def test_a_paused_batch_starts_no_line_until_it_is_resumed(
    client: OpenAI, bulk: BulkStage, stage: Stage, leader: Leader
) -> None:
    paused, other = create(client, [chat_line("a"), chat_line("b", "zwei")]), create(client, [chat_line("c")])
    bulk.feed()
    assert served(stage, leader) == {"a", "b", "c"}
    leader.step()  # the policy has all three again
    assert act(bulk.api, paused.id, "/pause")["magnus"]["paused_at"] is not None  # type: ignore[index]
    bulk.count()
    assert served(stage, leader) == {"c"}
    leader.resign()
    assert served(stage, leader) == {"c"}  # a new planner, too
    assert act(bulk.api, paused.id, "/resume")["magnus"]["paused_at"] is None  # type: ignore[index]
    bulk.count()
    assert served(stage, leader) == {"a", "b", "c"}
    assert bulk.api.sql("select untold from bulk_jobs") == [(False,), (False,)]
    bulk.finish()
    assert counts(client.batches.retrieve(paused.id)) == (2, 2, 0)
    assert client.batches.retrieve(other.id).status == "completed"


@dataclass(frozen=True)
class SteeringLimits(PromptLimits):
    """Limits whose check of a line pauses its batch first, as a client may do at that moment."""

    steer: Callable[[], object] = bool

    def output_limit(self, requested: int | None, *, param: str) -> int:
        """Pauses the batch."""
        self.steer()
        return super().output_limit(requested, param=param)


def test_a_batch_is_paused_at_once_while_its_lines_are_read_and_none_of_them_is_stored(
    client: OpenAI, bulk: BulkStage
) -> None:
    batch = create(client, [chat_line("a"), chat_line("b")])
    known: PromptLimits = bulk.api.client.application.extensions["magnus"].prompt_limits
    pause = partial(act, bulk.api, batch.id, "/pause")
    limits = SteeringLimits(**{field.name: getattr(known, field.name) for field in fields(known)}, steer=pause)
    LineFeeder(bulk.api.engine, lambda: limits, max_requests=100, max_tokens=1000, max_bytes=10**6).feed(60.0)
    assert bulk.api.sql("select next_line, (select count(*) from requests) from bulk_jobs") == [(1, 0)]
    assert bulk.api.sql("select tries from bulk_jobs") == [(0,)]  # no line is suspected of having ended the process
    act(bulk.api, batch.id, "/resume")
    bulk.finish()
    assert counts(client.batches.retrieve(batch.id)) == (2, 2, 0)


def test_lines_of_a_paused_batch_are_not_read_and_can_be_cancelled_or_expire(client: OpenAI, bulk: BulkStage) -> None:
    cancelled, expired = (create(client, [chat_line("a"), chat_line("b")]) for _ in range(2))
    act(bulk.api, cancelled.id, "/pause")
    assert bulk.feed() == 2
    act(bulk.api, expired.id, "/pause")
    bulk.count()
    assert bulk.api.sql("select held from requests") == [(True,), (True,)]
    client.batches.cancel(cancelled.id)
    bulk.api.sql("update bulk_jobs set expires_at = now() where id = :id", id=expired.id)
    bulk.count()
    for batch, status in ((cancelled, "cancelled"), (expired, "expired")):
        ended = client.batches.retrieve(batch.id)
        assert (ended.status, ended.magnus["paused_at"]) == (status, None)  # type: ignore[attr-defined]
    assert act(bulk.api, expired.id, "/pause", 400)["error"]["code"] == "batch_ended"  # type: ignore[index]


def test_a_row_that_runs_when_its_batch_is_paused_is_held_if_it_comes_back(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a")])
    bulk.feed()
    bulk.api.sql("update requests set status = 'in_progress'")
    act(bulk.api, batch.id, "/pause")
    bulk.count()
    assert bulk.api.sql("select status, held from requests") == [("in_progress", True)]


def test_another_window_moves_the_deadlines_of_waiting_lines_and_keeps_their_own(
    client: OpenAI, bulk: BulkStage
) -> None:
    own = {"deadline_s": 7200}
    batch = create(client, [chat_line("a"), chat_line("own", magnus=own)], completion_window="24h")
    bulk.feed()
    bulk.answer(0)

    def hours() -> list[int]:
        bulk.count()
        rows = bulk.api.sql(
            """select round(extract(epoch from r.deadline_at - j.created_at) / 3600)::int as hours
            from requests r, bulk_jobs j order by r.arrived_at"""
        )
        return [row.hours for row in rows]

    assert hours() == [24, 2]
    changed = act(bulk.api, batch.id, completion_window="1h")
    assert (changed["completion_window"], changed["expires_at"]) == ("1h", batch.created_at + 3600)
    assert hours() == [1, 1]
    act(bulk.api, batch.id, completion_window="7d")
    assert hours() == [168, 2]
    assert bulk.api.sql("select untold, (select bool_and(planner_epoch = 0) from requests) from bulk_jobs") == [
        (False, True)
    ]


def test_another_tier_moves_the_waiting_lines_and_those_that_are_read_later(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=4)
    batch = create(client, [chat_line(str(n), magnus={"priority": n}) for n in range(4)])

    def tiers() -> list[str]:
        bulk.count()
        return [
            f"{row.tier} {row.priority}" for row in api.sql("select tier, priority from requests order by arrived_at")
        ]

    bulk.feed()
    assert tiers() == ["flex 0", "flex 1"]
    changed = act(api, batch.id, service_tier="default")
    assert changed["magnus"]["service_tier"] == "default"  # type: ignore[index]
    assert tiers() == ["default 0", "default 1"]
    bulk.answer(1)
    bulk.feed()
    assert tiers() == ["default 0", "default 1", "default 2"]
    act(api, batch.id, service_tier="flex")
    assert tiers() == ["default 0", "flex 1", "flex 2"]  # what has ended stays
    assert act(api, batch.id, "", 400, service_tier="priority")["error"]["param"] == "service_tier"  # type: ignore[index]
    assert act(api, batch.id, "", 400, metadata="a")["error"]["param"] == "metadata"  # type: ignore[index]
    empty = api.call("POST", f"/v1/batches/{batch.id}", json={})
    assert (empty.status_code, empty.json["error"]["param"]) == (400, "completion_window")


def test_a_window_that_is_over_is_refused_and_changes_nothing(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a")])
    bulk.api.sql("update bulk_jobs set created_at = now() - interval '2 h'")
    error = act(bulk.api, batch.id, "", 400, completion_window="1h")["error"]
    assert error["param"] == "completion_window"  # type: ignore[index]
    assert "this window has ended. Give a longer one." in error["message"]  # type: ignore[index]
    assert act(bulk.api, batch.id, "", 400, completion_window="tomorrow")["error"]["param"] == "completion_window"  # type: ignore[index]
    assert client.batches.retrieve(batch.id).completion_window == "24h"


def test_a_retry_has_the_lines_without_an_answer_and_names_its_parent(client: OpenAI, api: Api) -> None:
    bulk = BulkStage(api, max_requests=6)
    lines = [chat_line("answered"), b"", b"no json", *(chat_line(f"{n}") for n in range(5)), chat_line("last", n=2)]
    budget = {"amount": 900.0}
    first = create(client, lines, metadata={"night": "1"}, extra_body={"magnus": {"budget": budget}})
    bulk.feed()  # the limit admits a part: some lines are never read
    bulk.answer(1)
    bulk.api.sql("update requests set status = 'failed', finished_at = now() where id = (select max(id) from requests)")
    error = act(api, first.id, "/retry", 400)["error"]
    assert error["code"] == "batch_not_ended"  # type: ignore[index]
    client.post(f"/batches/{first.id}", cast_to=Batch, body={"service_tier": "default"})
    client.batches.cancel(first.id)
    bulk.count()
    retry = client.batches.retrieve(str(act(api, first.id, "/retry")["id"]))
    assert (retry.magnus["parent_id"], retry.metadata) == (first.id, {"night": "1"})  # type: ignore[attr-defined]
    assert retry.magnus["service_tier"] == "default"  # type: ignore[attr-defined]
    assert retry.magnus["budget"] == budget | {"unit": "gpu_s", "used": 0.0}  # type: ignore[attr-defined]
    assert counts(retry)[0] == 6
    BulkStage(api).finish()
    done = client.batches.retrieve(retry.id)
    assert (done.status, counts(done)) == ("completed", (6, 6, 0))
    assert results(client, done.output_file_id).keys() == {"0", "1", "2", "3", "4", "last"}
    assert act(api, retry.id, "/retry", 400)["error"]["code"] == "nothing_to_retry"  # type: ignore[index]


def test_a_refused_retry_leaves_no_file(
    client: OpenAI, bulk: BulkStage, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create(client, [chat_line("a")])
    bulk.feed()
    client.batches.cancel(first.id)
    bulk.count()
    files = api.sql("select count(*) from files")
    monkeypatch.setattr("models.bulk.bulk_jobs.MOST_UNENDED", 0)
    act(api, first.id, "/retry", 429)
    assert api.sql("select count(*) from files") == files


def test_a_retry_that_is_repeated_under_its_key_is_one_batch(client: OpenAI, bulk: BulkStage) -> None:
    first, other = create(client, [chat_line("a")]), create(client, [chat_line("b")])
    bulk.feed()
    for batch in (first, other):
        client.batches.cancel(batch.id)
    bulk.count()
    key = {"Idempotency-Key": "once"}
    made = {client.post(f"/batches/{first.id}/retry", cast_to=Batch, options={"headers": key}).id for _ in range(2)}
    assert len(made) == 1
    with pytest.raises(openai.UnprocessableEntityError):
        client.post(f"/batches/{other.id}/retry", cast_to=Batch, options={"headers": key})


def test_without_its_input_a_batch_cannot_be_retried_and_says_what_to_do(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a")])
    client.batches.cancel(batch.id)
    bulk.count()
    bulk.api.sql("delete from file_chunks")
    error = act(bulk.api, batch.id, "/retry", 400)["error"]
    assert (error["code"], "Upload" in error["message"]) == ("input_file_deleted", True)  # type: ignore[index]
    assert len(client.files.list().data) == 1


def test_the_page_of_a_batch_shows_its_errors_by_cause_and_steers_it(client: OpenAI, bulk: BulkStage) -> None:
    batch = create(client, [chat_line("a"), b"no json", b"no json either", chat_line("failed"), chat_line("b", n=2)])
    bulk.feed()
    bulk.api.sql(
        """update requests set status = 'failed', finished_at = now(),
            error = '{"code": "out_of_memory", "message": "-"}'
        where id = (select request_id from bulk_lines where custom_id = 'failed')"""
    )
    bulk.answer(1)
    bulk.count()
    with make_sessions(bulk.api.engine)() as session:
        figures = bulk_figures(session, batch.id)
    assert [(cause.code, cause.lines, cause.line, cause.custom_id) for cause in figures.causes] == [
        ("invalid_json_line", 2, 2, None),
        ("out_of_memory", 1, 4, "failed"),
    ]
    assert (sum(step.lines for step in figures.steps), sum(step.tokens for step in figures.steps)) == (2, 2)
    key = bulk.api.with_key(scopes={Scope.operate, Scope.submit, Scope.read}).key
    assert bulk.api.client.post("/sign-in", data={"secret": key}).status_code == 303
    page = bulk.api.client.get(f"/batches/{batch.id}").text
    assert all(word in page for word in ("invalid_json_line", "out_of_memory", "Lines left", "Tokens generated"))
    token = page.split('name="token" value="')[1][:64]

    def press(action: str, status: int = 303, **fields: str) -> str:
        answer = bulk.api.client.post(f"/batches/{batch.id}/{action}", data={"token": token, **fields})
        assert answer.status_code == status, answer.text
        return str(answer.headers.get("Location"))

    press("pause")
    press("window", window="7d")
    press("window", 400, window="0d")
    press("retry", 400)
    press("burn", 404)
    assert bulk.api.sql("select paused_at is null, completion_window from bulk_jobs") == [(False, "7d")]
    press("cancel")
    bulk.count()
    retried = press("retry").rsplit("/", 1)[1]
    assert client.batches.retrieve(retried).magnus["parent_id"] == batch.id  # type: ignore[attr-defined]
    assert bulk.api.client.get(f"/batches/{retried}").status_code == 200
