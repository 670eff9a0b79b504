"""The control plane stays light: beat, planner, predictor and chores start without torch and Alembic."""

import subprocess
import sys

import pytest

from tests.integration.stub_engine_server import StubServer


@pytest.mark.parametrize(
    "work",
    [
        "from tasks.planning.planner_process import planner; planner(celery_service()).parts[0].step()",
        "from tasks.prediction.predictor_process import predictor; predictor(celery_service()).parts[0].step()",
        "from tasks.chores.chores_process import chores; chores(celery_service()).parts[0].step()",
        "import processes.celery.beat_process",
        "import tasks.training.trainer_process",
    ],
    ids=["planner", "predictor", "chores", "beat", "trainer"],
)
def test_the_control_plane_loads_neither_torch_nor_alembic(work: str, database_url: str, redis_url: str):
    script = f"""
import sys
from processes.celery.celery_app import celery_service
{work}
print(sorted({{"torch", "transformers", "sentence_transformers", "alembic"}} & sys.modules.keys()))
"""
    environment = {"MAGNUS_DATABASE_URL": database_url, "MAGNUS_REDIS_URL": redis_url, "PATH": ""}
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "[]"


def test_a_worker_whose_engine_is_a_server_never_loads_torch(database_url: str, redis_url: str):
    server = StubServer()
    script = f"""
import sys, tasks.serving.remote_worker as worker
from inference.remote.remote_engine import RemoteEngine
from inference.engine_requests import DecodingRequest
engine = RemoteEngine(worker.connect("{server.url}"))
print(engine.run([DecodingRequest("r", (7, 103), 9)])[0][0].generated_ids)
engine.close()
print(sorted({{"torch", "transformers", "sentence_transformers"}} & sys.modules.keys()))
"""
    environment = {"MAGNUS_DATABASE_URL": database_url, "MAGNUS_REDIS_URL": redis_url, "PATH": ""}
    try:
        said = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
    finally:
        server.die()
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-2:] == ["(102, 101, 100, 1)", "[]"]
