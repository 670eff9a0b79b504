"""Every length predictor that MAGNUS_PREDICTOR names: fitted by the trainer's job, adopted by the predictor's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from inference.prompts.prompt_format import load_prompt_format
from inference.toy.toy_applications import toy_requests
from learning.predictors.predictor_factory import bounds_of
from learning.store import load
from models import model_versions
from processes.configured_predictor import make_configured
from setting_parameters import Parameters
from settings import PredictorName, Settings
from tasks.prediction.predictor_in_service import PredictorInService
from tasks.training.refit_jobs import RefitJobs
from tests.integration.database_stage import Stage, eventually

ANSWERS = 160
LIMIT = 12  # tokens of an answer: errors stay within the paper's 10, so that also a bad predictor is published


def answered(stage: Stage) -> None:
    """Right answers of the toy applications, as the bundled model gives them."""
    tokens = load_prompt_format(Settings().model)
    ended = datetime.now(UTC) - timedelta(minutes=1)
    short = [one for one in toy_requests(2000, seed=3) if tokens.count(one.output) + 1 < LIMIT]
    for n, one in enumerate(short[:ANSWERS]):
        stage.request(
            f"r{n:04}",
            application=one.application,
            instructions=one.instruction,
            input=one.input,
            input_tokens=tokens.count(one.input),
            prompt_tokens=len(tokens.encode(one.instruction, one.input)),
            limit_tokens=LIMIT,
            predicted_tokens=LIMIT,
            predicted_upper_tokens=LIMIT,
            status="completed",
            output_tokens=tokens.count(one.output) + 1,
            finished_at=ended + timedelta(milliseconds=n),
        )


def fitted(stage: Stage, tmp_path: Path, name: str, **others: Any) -> str:
    """The version that the trainer's job has published."""
    settings = Settings(state_dir=tmp_path, predictor=name, **others)
    RefitJobs(stage.database, partial(make_configured, settings), bounds_of(name)).refit_length()
    with stage.database.begin() as connection:
        active = model_versions.active_version(connection, "length")
    assert active is not None
    assert load(active.stored, active.sha256).name == name
    return active.version


def predicted_by(stage: Stage) -> str:
    """The version that a predictor in service writes beside a new request's length."""
    stage.request("new", input="red green", limit_tokens=LIMIT, predicted_tokens=None, predicted_upper_tokens=None)
    PredictorInService(stage.database, chunk=16, most_observed=16).run(lambda _: None)
    columns = stage.requests("predicted_tokens", "predicted_upper_tokens", "predictor_version")
    tokens, upper, version = columns["new"]
    assert 1 <= tokens <= upper <= LIMIT
    return str(version)


@pytest.mark.parametrize("name", get_args(PredictorName))
def test_the_trainer_fits_it_and_the_predictor_adopts_it(stage: Stage, name: str, tmp_path: Path):
    answered(stage)
    version = fitted(stage, tmp_path, name, parameters=Parameters(perception_epochs=1))
    assert predicted_by(stage) == version


@pytest.mark.parametrize("target", ["longest", "mean"])
def test_perception_reads_the_length_off_a_len_token(stage: Stage, target: str, tmp_path: Path):
    answered(stage)
    chosen = {"perception_form": "len_token", "perception_target": target, "perception_epochs": 2}
    version = fitted(stage, tmp_path, "perception", parameters=Parameters.model_validate(chosen))
    assert predicted_by(stage) == version


@pytest.fixture
def trainer(database_url: str, redis_url: str) -> Iterator[Any]:
    """Starts the trainer's process with these settings; it is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: str) -> subprocess.Popen[bytes]:
        given = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "PARAMETERS": "refit_length_s=0.5"} | settings
        environment = os.environ | {f"MAGNUS_{name}": value for name, value in given.items()}
        command = [sys.executable, "-m", "tasks.training.trainer_process"]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.long
def test_the_trainers_process_tunes_the_model_that_is_served(stage: Stage, trainer: Any):
    answered(stage)
    tuning = "perception_form=len_token,perception_epochs=1"
    trainer(PREDICTOR="perception", PARAMETERS=f"refit_length_s=0.5,{tuning}")
    eventually(lambda: stage.sql("select 1 from model_versions"), within_s=120)
