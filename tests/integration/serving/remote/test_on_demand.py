"""Servers that load models on demand: what they say is loaded, and what a change to another model takes."""

import json
import subprocess
import sys

import pytest

from inference.remote.on_demand import find_server
from inference.remote.server_errors import ServerUnusable
from inference.remote.server_probe import connect
from settings import BUNDLED_MODEL
from tests.integration.stub_engine_server import StubServer

CHAT = "/v1/chat/completions"


@pytest.fixture
def server(server: StubServer) -> StubServer:
    server.posts[CHAT] = 200, "{}"
    return server


ROUTER = {"data": [{"id": "a", "status": {"value": "loaded"}}, {"id": "b", "status": {"value": "unloaded"}}]}


@pytest.mark.parametrize(
    ("path", "page", "loaded"),
    [
        ("/running", {"running": [{"model": "a", "state": "ready"}, {"model": "b", "state": "starting"}]}, {"a"}),
        ("/api/ps", {"models": [{"name": "a:latest", "model": "a:latest", "size": 1}]}, {"a"}),
        ("/models", ROUTER, {"a"}),
        ("/running", {"running": "yes"}, None),
        ("/models", {"data": [{"id": "a"}]}, None),
    ],
)
def test_the_models_that_a_server_says_it_has_loaded_are_known(
    server: StubServer, path: str, page: object, loaded: set[str] | None
):
    server.pages[path] = json.dumps(page)
    found = find_server(f"{server.url}/v1", "auto", None)
    assert found.page == (None if loaded is None else path)
    assert found.loaded() == (loaded or set())


def test_a_change_takes_as_long_as_the_first_answer_takes_longer_than_the_next(server: StubServer):
    instants = iter([100.0, 107.0, 107.5])
    assert find_server(server.url, "auto", None).change_s("a", "/models/a", lambda: next(instants)) == 6.5
    assert [body["model"] for body in server.bodies] == ["a", "a"]


def test_transformers_serve_is_asked_for_the_directory(server: StubServer):
    find_server(server.url, "transformers", None).change_s("a", "/models/a")
    assert server.bodies[0]["model"] == "/models/a"


@pytest.mark.parametrize(("status", "usable"), [(400, True), (404, False), (500, False), (503, False)])
def test_a_model_that_the_server_cannot_load_is_told_from_one_without_a_chat_template(
    server: StubServer, status: int, usable: bool
):
    server.posts[CHAT] = status, "{}"
    found = find_server(server.url, "auto", None)
    if usable:
        found.change_s("a", "/models/a")
    else:
        with pytest.raises(ServerUnusable, match=f"a request for a with status {status}"):
            found.change_s("a", "/models/a")


def test_a_server_that_resets_the_connection_after_an_error_is_probed_to_the_end(server: StubServer):
    server.posts[CHAT] = 500, "{}"  # as transformers serve answers the probe's request for a model that does not exist
    assert connect(server.url, "transformers", model="a", directory="/models/a").model == "/models/a"


def test_each_model_of_llama_swap_is_used_below_its_own_address(server: StubServer):
    server.pages |= {"/running": '{"running": []}', "/upstream/a/v1/models": '{"data": []}'}
    found = find_server(server.url, "auto", None)
    assert found.address("a") == f"{server.url}/upstream/a"
    found.change_s("a", "/models/a")
    with pytest.raises(ServerUnusable, match="status 404"):
        found.change_s("b", "/models/b")
    assert server.bodies == []


def test_a_worker_asks_for_the_model_in_service_and_says_which_others_it_can_load(
    server: StubServer, database_url: str, redis_url: str
):
    server.pages["/v1/models"] = json.dumps({"data": [{"id": name, "owned_by": "vllm"} for name in ("a", "b")]})
    server.posts_once.append((503, "{}"))  # one try fails
    directory = str(BUNDLED_MODEL)
    script = f"""
from inference.engine_requests import DecodingRequest
from processes.celery.celery_app import celery_service
from tasks.serving.remote_worker import RemoteModels, ServerUnusable, until_it_is_usable
service = celery_service()
models = RemoteModels(service, "w", "{server.url}", "auto", None, 9, {{name: "{directory}" for name in "abc"}})
for name in "aba":
    served = until_it_is_usable(2)(models.load, name)
    print(served.make_engine().run([DecodingRequest("r", (7, 103), 9)])[0][0].generated_ids)
    facts = served.facts
    print(facts.model, {{name: one.memory.max_rows for name, one in facts.loadable.items()}})
print(min(one.change_s for one in facts.loadable.values()), served.report().fault)
try:
    models.load("c")
except ServerUnusable as error:
    print(error)
models.close()
"""
    environment = {"MAGNUS_DATABASE_URL": database_url, "MAGNUS_REDIS_URL": redis_url, "PATH": ""}
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    answer = "(102, 101, 100, 1)"
    told = [line for line in said.stdout.splitlines() if "model loaded" not in line and "not usable yet" not in line]
    assert told[:-1] == [answer, "a {}", answer, "b {'a': 9, 'b': 9}", answer, "a {'a': 9, 'b': 9}", "0.5 None"]
    assert "does not serve c, but a, b" in told[-1]
    assert [body["model"] for body in server.bodies if "prompt" in body] == ["a", "b", "a"]


def test_a_llamacpp_of_one_model_is_not_taken_for_one_of_several(server: StubServer):
    server.pages["/v1/models"] = json.dumps({"data": [{"id": "a", "owned_by": "llamacpp"}]})
    assert connect(server.url, model="alias").model == "alias"
    assert connect(server.url, model="a", directory="/models/a").model == "a"
    with pytest.raises(ServerUnusable, match="it does not serve b, but a"):
        connect(server.url, model="b", directory="/models/b")


def test_llamacpps_router_is_asked_for_the_pages_of_the_model(server: StubServer):
    listed = [{"id": name, "owned_by": "llamacpp"} for name in ("a", "b")]
    props = {"total_slots": 3, "default_generation_settings": {"n_ctx": 4096}}
    server.pages |= {"/v1/models": json.dumps({"data": listed}), "/props?model=b": json.dumps(props)}
    server.pages |= {"/slots?model=b": json.dumps([{"id": 0, "is_processing": False}] * 3), "/metrics": ""}
    found = connect(server.url, model="b", directory="/models/b")
    assert (found.model, found.max_rows, found.max_positions) == ("b", 3, 4096)
    assert (found.capabilities.load_page, found.query) == ("/slots", {"model": "b"})
