"""A worker whose engine is a server of others, on a real Postgres: leases, answers, faults and what they cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from inference.engine_errors import TokenizerAway
from inference.json_grammar import FormatChecks
from inference.model_directory.generation_defaults import GenerationDefaults
from inference.prompts.prompt_format import PromptFormat
from inference.prompts.request_tokens import NEXT_TURN, ChatEnding, Turn
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_probe import connect
from models.planning.live_fleet import Lacking, lacking, live_workers
from models.registered_workers import registered_workers
from request_body import PLAIN, AnswerForm
from tests.integration.database_stage import MODEL, Stage, eventually
from tests.integration.serving_worker import Serving, small_model
from tests.integration.stub_engine_server import StubHandler, StubServer, falls_silent_after, refuses, right, says


@pytest.fixture
def engine(server: StubServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    _, prompt_format = small_model(tmp_path_factory.getbasetemp() / MODEL)
    made = RemoteEngine(connect(server.url), prompt_format.detokenizer)
    yield made
    made.close()


@pytest.fixture
def serving(stage: Stage, engine: RemoteEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    loaded, prompt_format = small_model(tmp_path_factory.getbasetemp() / MODEL)

    made = Serving(stage, loaded, prompt_format, 10_000, lambda: engine, lambda: engine.watch.report)
    yield made
    made.close()


class TokenizerThatGoes:
    """A tokenizer whose server is unreachable, either while answers are decoded or while prompts are encoded."""

    detokenizer = None
    takes_tools = thinks = reads_clock = False
    generation = GenerationDefaults()
    vocabulary_size = context_tokens = long_prompts = template_variables = None
    name, formats = "small", FormatChecks()

    def __init__(self, ours: PromptFormat) -> None:
        self._ours, self.away, self.cannot_encode = ours, True, False

    def encode_request(
        self, instructions: str, input: str, turns: Sequence[Turn], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        if self.cannot_encode:
            raise TokenizerAway("gone")
        return self._ours.encode_request(instructions, input, turns)

    def answer_form(self, prompt_ids: Sequence[int], begun: str = "") -> AnswerForm:
        return PLAIN

    def encode_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], ending: ChatEnding = NEXT_TURN
    ) -> list[int]:
        raise TokenizerAway("gone")

    def encode_raw(self, text: str) -> list[int]:
        return self._ours.encode_raw(text)

    def count(self, text: str) -> int:
        return self._ours.count(text)

    def decode(self, ids: Sequence[int], *, continues: bool = False) -> str:
        if self.away:
            raise TokenizerAway("gone")
        return self._ours.decode(ids, continues=continues)

    def token_bytes(self, id: int) -> bytes:
        return self._ours.token_bytes(id)


def working(stage: Stage) -> list[str]:
    with stage.database.connect() as connection:
        return [worker.name for worker in live_workers(connection, alive_s=30.0)]


@pytest.mark.parametrize("joins", [True, False])
def test_requests_are_answered_with_exact_token_counts(stage: Stage, serving: Serving, joins: bool):
    stage.request("r1", limit_tokens=100)
    stage.request("r2", limit_tokens=5)
    batch_id = serving.serve("r1", "r2", joins=joins)
    assert stage.requests("status", "finish_reason", "output_tokens", "attempts") == {
        "r1": ("completed", "eos", 9, 1),
        "r2": ("incomplete", "limit", 5, 1),
    }
    assert serving.batch(batch_id, "status, valid_tokens") == ("finished", 14)


@pytest.mark.parametrize("joins", [True, False])
def test_what_the_server_refuses_fails_with_its_words(stage: Stage, server: StubServer, serving: Serving, joins: bool):
    server.faults.append(refuses(400, "this prompt is too long"))
    stage.request("r1")
    serving.serve("r1", joins=joins)
    ((status, error),) = stage.requests("status", "error").values()
    assert (status, error["code"]) == ("failed", "refused_by_engine")
    assert "this prompt is too long" in error["message"]


def test_a_server_that_dies_with_60_rows_loses_none_and_the_worker_gets_no_work_until_it_is_back(
    stage: Stage, server: StubServer, engine: RemoteEngine, serving: Serving
):
    server.answer_tokens = 50
    server.always = falls_silent_after(7)
    ids = [stage.request(f"r{n:02}", limit_tokens=100) for n in range(60)]
    delivery = serving.start(serving.assign(*ids, joins=True))
    eventually(lambda: list(engine.rows.values()) == 60 * [7])
    server.die()
    delivery.result(timeout=60)
    rows = stage.requests("status", "attempts", "suspected", "cardinality(generated_ids)")
    assert {row[:3] for row in rows.values()} == {("queued", 0, 0)}
    assert all(row[3] == 7 for row in rows.values())
    eventually(lambda: working(stage) == [])
    again = StubServer(server.server_port)
    again.answer_tokens = 50
    try:
        eventually(lambda: working(stage) == ["w1"])
        serving.serve(*ids, joins=True)
    finally:
        again.die()
    assert set(stage.requests("status", "output_tokens", "attempts").values()) == {("completed", 51, 1)}
    # each went on from what it had: its prompt has three tokens
    assert [len(prompt) - 3 for prompt in again.prompts] == 60 * [7]


def test_a_cancelled_request_leaves_the_server(stage: Stage, server: StubServer, serving: Serving):
    server.always = falls_silent_after(3)
    stage.request("r1")
    batch_id = serving.assign("r1", joins=True)
    delivery = serving.start(batch_id)
    serving.running(batch_id)
    stage.sql("update requests set cancel_requested_at = clock_timestamp()")
    delivery.result(timeout=60)
    eventually(lambda: server.running == 0)
    assert stage.requests("status", "output_tokens") == {"r1": ("cancelled", 3)}


def test_a_server_that_answers_garbage_is_said_so_and_costs_no_attempt(
    stage: Stage, server: StubServer, serving: Serving
):
    server.always = says("<html>hello")
    stage.request("r1")
    serving.serve("r1", joins=True)
    assert stage.requests("status", "attempts") == {"r1": ("queued", 0)}
    eventually(lambda: stage.sql("select 1 from workers where report->>'fault' like '%answer cannot be read%'"))
    assert working(stage) == []


def test_a_request_that_its_server_never_answers_fails_at_its_third_attempt_and_its_mates_are_answered(
    stage: Stage, server: StubServer, serving: Serving
):
    def filtered(handler: StubHandler, body: dict[str, Any]) -> None:
        bad = len(body["prompt"]) > 3
        (says('data: {"choices": [{"finish_reason": "content_filter"}]}', "") if bad else right)(handler, body)

    server.always = filtered
    stage.request("bad", input="one two three four five")
    stage.request("good", limit_tokens=100)
    serving.serve("bad", "good", joins=True)
    assert stage.requests("status", "attempts") == {"bad": ("queued", 1), "good": ("completed", 1)}
    for _ in range(2):
        serving.serve("bad", joins=True)
    ((status, attempts, error),) = (stage.requests("status", "attempts", "error")["bad"],)
    assert (status, attempts, error["code"]) == ("failed", 3, "server_error")
    assert "an end of an unknown kind" in error["message"]
    assert stage.sql("select 1 from requests where id = 'bad' and finished_at is not null")


def test_the_planner_reads_how_many_rows_the_server_takes(stage: Stage, serving: Serving):
    eventually(lambda: stage.sql("select 1 from workers where report->>'max_rows' = '8'"))
    with stage.database.connect() as connection:
        (worker,) = live_workers(connection, alive_s=30.0)
    assert worker.memory.max_rows == 8


def test_what_all_or_some_workers_of_a_model_lack_is_known(stage: Stage, serving: Serving):
    stage.sql("""update workers set facts = facts || '{"lacks": ["temperature"]}'""")
    with stage.database.connect() as connection:
        assert lacking(registered_workers(connection)) == {MODEL: Lacking(all=frozenset({"temperature"}))}
    stage.worker("w2")
    with stage.database.connect() as connection:
        assert lacking(registered_workers(connection)) == {MODEL: Lacking(some=frozenset({"temperature"}))}
        assert {worker.name: worker.lacks for worker in live_workers(connection, 30.0)} == {
            "w1": frozenset({"temperature"}),
            "w2": frozenset(),
        }


@pytest.mark.parametrize("joins", [True, False])
def test_log_probabilities_are_stored_with_the_answer_also_when_it_came_in_two_pieces(
    stage: Stage, server: StubServer, engine: RemoteEngine, serving: Serving, joins: bool
):
    server.always = falls_silent_after(5)
    stage.request("r1", limit_tokens=100, body={"top_logprobs": 1})
    delivery = serving.start(serving.assign("r1", joins=joins))
    eventually(lambda: engine.rows == {"r1": 5})
    server.die()
    delivery.result(timeout=60)
    ((packed,),) = stage.sql("select logprobs from requests")
    assert [token for token, *_ in packed] == [107, 106, 105, 104, 103]
    again = StubServer(server.server_port)
    try:
        eventually(lambda: working(stage) == ["w1"])
        serving.serve("r1", joins=joins)
    finally:
        again.die()
    ((shown, tokens),) = stage.sql("select logprobs, output_tokens from requests")
    assert tokens == 9
    # the end of sequence is no part of the text
    assert [entry["logprob"] for entry in shown] == [-n / 1000 for n in range(107, 99, -1)]
    assert all([top["logprob"] for top in entry["top_logprobs"]] == [entry["logprob"]] for entry in shown)


def test_answers_whose_tokenizer_is_away_are_generated_again_at_no_attempts_cost(
    stage: Stage, engine: RemoteEngine, tmp_path_factory: pytest.TempPathFactory
):
    loaded, ours = small_model(tmp_path_factory.getbasetemp() / MODEL)
    tokenizer = TokenizerThatGoes(ours)
    worker = Serving(stage, loaded, tokenizer, 10_000, lambda: engine)
    try:
        stage.request("r1", limit_tokens=100)
        worker.serve("r1", joins=True)
        assert stage.requests("status", "attempts", "suspected") == {"r1": ("queued", 0, 0)}
        tokenizer.away = False
        worker.serve("r1", joins=True)
        assert stage.requests("status", "attempts") == {"r1": ("completed", 1)}
        tokenizer.cannot_encode = True
        stage.request("r2", limit_tokens=100)
        worker.serve("r2", joins=True)
        eventually(lambda: stage.requests("status", "attempts", "suspected")["r2"] == ("queued", 0, 0))
    finally:
        worker.close()
