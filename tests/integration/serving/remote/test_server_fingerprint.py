"""Servers of the same model have the same fingerprint; what they announce, or their tokenizers, tell others apart."""

import json
from pathlib import Path

from inference.model_directory.model_fingerprint import fingerprints
from inference.prompts.prompt_format import PromptFormat, load_prompt_format
from inference.remote.remote_engine import RemoteEngine
from inference.remote.server_fingerprint import server_fingerprints
from inference.remote.server_probe import connect
from settings import BUNDLED_MODEL
from tests.integration.database_stage import eventually
from tests.integration.small_model import make_small_model
from tests.integration.stub_engine_server import StubServer


def found(server: StubServer, tokens: PromptFormat) -> dict[str, str]:
    return server_fingerprints("small", connect(server.url), tokens)


def lists(server: StubServer, **adapter: object) -> None:
    base = {"id": "stub", "owned_by": "vllm", "root": server.root}
    server.pages["/v1/models"] = json.dumps({"data": [base, {"id": "polite", "parent": "stub"} | adapter]})


def test_servers_of_one_root_and_tokenizer_are_alike_and_others_are_not(server: StubServer, tmp_path: Path) -> None:
    bundled, letters = load_prompt_format(str(BUNDLED_MODEL)), load_prompt_format(str(make_small_model(tmp_path)))
    other = StubServer()
    server.root, other.root = "acme/small", "acme/small"
    assert found(server, bundled) == found(other, bundled)
    assert found(server, bundled) != found(other, letters)
    other.root = "acme/large"
    assert found(server, bundled) != found(other, bundled)
    other.die()


def test_a_server_of_a_directory_that_is_here_is_like_our_own_engine_of_it(server: StubServer, tmp_path: Path) -> None:
    base, adapter = make_small_model(tmp_path / "base"), tmp_path / "polite"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"polite")
    server.root = str(base)
    lists(server, root=str(adapter))
    assert found(server, load_prompt_format(str(base))) == fingerprints("small", str(base), {"polite": adapter})


def test_adapters_of_one_name_are_told_apart_by_their_roots(server: StubServer) -> None:
    bundled, polite = load_prompt_format(str(BUNDLED_MODEL)), set[str]()
    for root in ("acme/polite-1", "acme/polite-2"):
        lists(server, root=root)
        polite.add(found(server, bundled)["polite"])
    assert len(polite) == 2
    assert found(server, bundled)["small"] not in polite


def test_llamacpps_models_of_one_name_are_told_apart_by_their_sizes(server: StubServer) -> None:
    bundled, of_sizes = load_prompt_format(str(BUNDLED_MODEL)), set[str]()
    server.pages |= {"/props": json.dumps({"total_slots": 1}), "/metrics": "", "/slots": "[]"}
    for parameters, context in ((100, 512), (100, 1024), (200, 512)):
        listed = {"id": "m", "owned_by": "llamacpp", "meta": {"n_params": parameters, "n_ctx_train": context}}
        server.pages["/v1/models"] = json.dumps({"data": [listed]})
        of_sizes.add(found(server, bundled)["small"])
    assert len(of_sizes) == 2  # the context is no part of the model


def test_a_llamacpp_that_answers_to_a_name_that_it_does_not_list_is_not_set_aside(server: StubServer) -> None:
    listed = json.dumps({"data": [{"id": "/models/a.gguf", "owned_by": "llamacpp"}]})
    server.pages |= {"/props": json.dumps({"total_slots": 1}), "/slots": "[]", "/health": "{}", "/v1/models": listed}
    server.posts["/completion"] = (200, 'data: {"content": "a", "tokens": [5], "stop": true, "stop_type": "eos"}\n\n')
    engine = RemoteEngine(connect(server.url, model="a"))
    try:
        engine.watch.set_aside("it was lost")  # so that its model is looked at
        eventually(lambda: engine.watch.report.fault is None)
    finally:
        engine.close()


def test_a_server_that_serves_another_model_under_the_same_name_is_set_aside(server: StubServer) -> None:
    server.root = "acme/small"
    engine = RemoteEngine(connect(server.url))
    try:
        server.root = "acme/large"
        engine.watch.set_aside("it was lost")
        eventually(lambda: "another model as stub" in (engine.watch.report.fault or ""))
        server.root = "acme/small"
        eventually(lambda: engine.watch.report.fault is None)
    finally:
        engine.close()
