"""Workers of different models under one name: a request that has tokens goes back to the model that generated them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from inference.model_directory.model_fingerprint import fingerprints
from scheduling.sharing.policy_factory import PolicySettings
from tasks.planning.leader import Leader
from tests.integration.database_stage import MODEL, Stage
from tests.integration.planner_stage import RULES
from tests.integration.serving_worker import Serving, small_model


def worker(stage: Stage, name: str, fingerprint: str, kv_tokens: int = 10_000) -> None:
    stage.worker(name, kv_tokens=kv_tokens)
    known = "jsonb_build_object('small', cast(:fingerprint as text))"
    stage.sql(
        f"update workers set facts = jsonb_set(facts, '{{fingerprints}}', {known}) where name = :name",
        name=name,
        fingerprint=fingerprint,
    )


def begun(stage: Stage, id: str, by: str, **columns: Any) -> None:
    stage.request(id, generated_ids=[5, 6], generated_by=by, **columns)


def test_a_request_goes_to_the_worker_whose_model_generated_its_tokens(stage: Stage, leader: Leader) -> None:
    worker(stage, "w1", "a")
    worker(stage, "w2", "b")
    for one, by in (("r1", "b"), ("r2", "b"), ("r3", "a")):
        begun(stage, one, by)
    leader.step()
    assert dict(stage.batches().values()) == {"w1": ["r3"], "w2": ["r1", "r2"]}


@pytest.mark.parametrize(
    "gone",
    ["drained_at = now()", "stopped_at = now()", """report = '{"fault": "away"}'""", "heartbeat_at = '2000-1-1'"],
)
def test_once_no_worker_of_that_model_takes_work_another_begins_the_request_anew(
    stage: Stage, leader: Leader, gone: str
) -> None:
    worker(stage, "w1", "a")
    worker(stage, "w2", "b")
    leader.step()
    stage.sql(f"update workers set {gone} where name = 'w1'")
    begun(stage, "r1", "a")
    leader.step()
    assert dict(stage.batches().values()) == {"w2": ["r1"]}


def test_a_request_that_outgrew_its_worker_goes_to_a_larger_one_of_another_model(stage: Stage, leader: Leader) -> None:
    worker(stage, "w1", "a", kv_tokens=30)
    worker(stage, "w2", "b")
    begun(stage, "r1", "a", outgrew_tokens=30)
    leader.step()
    assert dict(stage.batches().values()) == {"w2": ["r1"]}


def test_a_request_too_long_for_its_models_workers_goes_to_a_larger_one_of_another(
    stage: Stage, leader: Leader
) -> None:
    worker(stage, "w1", "a", kv_tokens=30)
    worker(stage, "w2", "b")
    begun(stage, "r1", "a", prompt_tokens=60)
    leader.step()
    assert dict(stage.batches().values()) == {"w2": ["r1"]}


@pytest.mark.parametrize("group", ["suspect_group", "sealed_group"])
def test_a_group_with_tokens_of_two_models_does_not_wait_for_ever(stage: Stage, leader: Leader, group: str) -> None:
    worker(stage, "w1", "a")
    worker(stage, "w2", "b")
    for one, by in (("r1", "a"), ("r2", "b"), ("r3", "a"), ("r4", "b")):
        begun(stage, one, by, **{group: "g"})
    leader.step()
    assert stage.batches()


def test_slices_end_though_two_models_take_turns(stage: Stage, tmp_path: Path) -> None:
    servings = {}
    for seed in (3, 4):
        name = f"seed {seed}"
        loaded, prompt_format = small_model(tmp_path / name, seed)
        own = fingerprints(MODEL, str(tmp_path / name), {})
        servings[name] = Serving(stage, loaded, prompt_format, kv_tokens=60, name=name, fingerprints=own)
    asked = {f"r{number}": "abcdef"[number:] for number in range(6)}
    for one, text in asked.items():
        stage.request(one, input=text, limit_tokens=30)
    leader = Leader(stage.database, replace(RULES, policy="scls", settings=PolicySettings(slice_tokens=4)))
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3000):
            for batch_id, name in leader.step():
                pool.submit(servings[name].runner.serve, batch_id)
            if not stage.sql("select 1 from requests where finished_at is null"):
                break
            Event().wait(0.01)
    answers = stage.requests("output_text")
    leader.resign()
    for serving in servings.values():
        serving.close()
    for one, text in asked.items():
        assert answers[one] in [serving.alone(text, 30) for serving in servings.values()]
