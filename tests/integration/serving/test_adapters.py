"""Adapters as clients, planner, worker and bill see them: models of their own, served by the workers of their base."""

from pathlib import Path

import pytest
from openai import NotFoundError, OpenAI
from safetensors.torch import save_file
from torch import full

from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.loading.model_loading import load_model
from inference.model_directory.adapter_files import CONFIG, PREFIX, WEIGHTS
from inference.prompts.prompt_format import load_prompt_format
from models.connections.session import make_sessions
from models.operations import operator_jobs
from models.planning import live_fleet
from tasks.planning.leader import Leader
from tests.integration.api_service import MODEL as WORDS
from tests.integration.api_service import Api
from tests.integration.bulk_stage import BulkStage, chat_line, create
from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import Serving
from tests.integration.small_model import make_small_model

CHAT = [{"role": "user", "content": "eins"}]


def adapted_worker(stage: Stage, name: str, *adapters: str, model: str = MODEL) -> None:
    stage.worker(name, model=model)
    stage.sql(
        """update workers set facts = jsonb_set(facts, '{adapters}', to_jsonb(cast(:adapters as text[])))
            where name = :name""",
        adapters=list(adapters),
        name=name,
    )


def test_an_adapter_is_a_model_beside_its_base(api: Api, client: OpenAI, bulk: BulkStage) -> None:
    stage = Stage(api.engine)
    adapted_worker(stage, "w1", "polite", model=WORDS)
    adapted_worker(stage, "w2", "foreign", model="another")
    listed = {one.id: one.model_dump() for one in client.models.list()}
    assert list(listed) == [WORDS, "polite"]
    assert [one["parent"] for one in listed.values()] == [None, WORDS]
    assert client.models.retrieve("polite").model_dump() == listed["polite"]
    assert listed["polite"]["magnus"] == listed[WORDS]["magnus"]
    assert [api.submit(model=name)["model"] for name in ("polite", WORDS)] == ["polite", WORDS]
    create(client, [chat_line(name, model=name) for name in ("polite", WORDS, "foreign")])
    bulk.feed()
    stored = api.sql("select model, base, count(*) from requests group by 1, 2 order by 1")
    assert [tuple(row) for row in stored] == [("polite", WORDS, 2), (WORDS, None, 2)]
    ((error,),) = api.sql("select error->>'code' from bulk_lines where error is not null")
    assert error == "model_not_found"
    with pytest.raises(NotFoundError, match="with the adapters polite"):
        client.chat.completions.create(model="foreign", messages=CHAT)  # type: ignore[arg-type]


def test_a_worker_that_lacks_an_adapter_gets_none_of_its_requests(stage: Stage, leader: Leader) -> None:
    adapted_worker(stage, "w1")
    adapted_worker(stage, "w2", "polite")
    adapted_worker(stage, "w3", "polite", "rude")
    for name, base in (("rude", MODEL), ("polite", MODEL), (MODEL, None)):
        stage.request(name, model=name, base=base)
        leader.step()
    assert list(stage.batches().values()) == [("w3", ["rude"]), ("w2", ["polite"]), ("w1", [MODEL])]
    with stage.database.connect() as connection:
        lacks = {worker.name: worker.lacks for worker in live_fleet.live_workers(connection, 60.0)}
    assert lacks == {"w1": {"adapter:polite", "adapter:rude"}, "w2": {"adapter:rude"}, "w3": frozenset()}


def test_an_operator_moves_requests_to_an_adapter_and_back(stage: Stage) -> None:
    adapted_worker(stage, "w1", "polite")
    stage.request("r1", generated_ids=[5, 6])
    with make_sessions(stage.database).begin() as session:
        assert operator_jobs.served_models(session) == ["polite", MODEL]
        assert operator_jobs.move_waiting(session, MODEL, "polite") == 1
    assert stage.requests("model", "base", "generated_ids") == {"r1": ("polite", MODEL, [])}
    with make_sessions(stage.database).begin() as session:
        assert operator_jobs.move_waiting(session, "polite", MODEL) == 1
    assert stage.requests("model", "base") == {"r1": (MODEL, None)}


def write_adapter(directory: Path, value: float) -> None:
    directory.mkdir(parents=True)
    module = f"{PREFIX}model.layers.0.mlp.down_proj"
    (directory / CONFIG).write_text('{"peft_type": "LORA", "lora_alpha": 2}')
    pair = {f"{module}.lora_A.weight": full((1, 32), value), f"{module}.lora_B.weight": full((16, 1), 1.0)}
    pair[f"{module}.lora_B.weight"][::2] = -2.0
    save_file(pair, directory / WEIGHTS)


def test_rows_of_adapters_and_base_are_served_in_one_batch_and_billed_by_their_names(
    stage: Stage, tmp_path: Path
) -> None:
    for name, value in (("polite", 3.0), ("rude", -4.0)):
        write_adapter(tmp_path / "adapters" / name, value)
    directory = str(make_small_model(tmp_path / MODEL))
    loaded, prompt_format = load_model(directory, adapters=str(tmp_path / "adapters")), load_prompt_format(directory)
    serving = Serving(stage, loaded, prompt_format, kv_tokens=10_000)
    names = {"polite": MODEL, "rude": MODEL, MODEL: None}
    prompt = "the same beginning of every prompt, which is longer than a block"
    for name, base in names.items():
        stage.request(name, model=name, base=base, input=prompt, limit_tokens=12)
    stage.request("gone", model="gone", base=MODEL, input=prompt)
    serving.serve(*names, "gone", joins=True)
    alone = {}
    for name, base in names.items():
        asked = DecodingRequest(
            name, tuple(prompt_format.encode_request("", prompt, ())), 12, adapter=name if base else ""
        )
        ((row,), _) = Engine(loaded, 10**9).run([asked])
        alone[name] = prompt_format.decode(row.generated_ids)
    serving.close()
    answers = stage.requests("output_text")
    assert {name: answers[name] for name in names} == alone
    assert len(set(alone.values())) == 3
    ((status, message),) = stage.sql("select status, error->>'message' from requests where id = 'gone'")
    assert (status, "no adapter gone" in message) == ("failed", True)
    used = stage.sql("select model, requests, answer_tokens from usage_entries where requests > 0 order by 1")
    assert [tuple(row) for row in used] == [("polite", 1, 12), ("rude", 1, 12), (MODEL, 1, 12)]
