"""From nothing but the address of a server to right answers: `magnus up --engine URL` and no configuration."""

import httpx
import pytest

from benchmarks.outside_engines.server_processes import EngineServer
from cli.api_client import Client, output_text
from inference.remote.server_tokens import ServerTokens
from settings import BUNDLED_MODEL
from tests.e2e.whole_service import running_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # vLLM takes minutes to start where others use the cores too
REQUESTS = 20


def options_for(server: EngineServer) -> tuple[str, ...]:
    """vLLM's own tokenizer, as if its model's directory were on another host; llama.cpp's writes no blank before each
    text, as the toy's does, so that there ours is named.
    """
    models = {"vllm": f"vllm+{server.url}", "llamacpp": str(BUNDLED_MODEL)}
    return ("--model", models[server.kind]) if server.kind in models else ()


def test_a_service_in_front_of_the_server_gives_the_engines_answers(tested, server, right_engine):
    rows = tested.toy_sequences(REQUESTS, limit=200)
    right = right_engine.drain(rows)
    with running_up("--engine", server.url, *options_for(server)) as up, Client(up.url, up.key) as client:
        model = client.model()
        responses = [
            client.create({"model": model, "instructions": instructions, "input": text, "background": True})
            for (_, instructions), (_, text) in (row.turns for row in rows)
        ]
        answers = [client.wait(response["id"]) for response in responses]
    assert [(output_text(one), one["usage"]["output_tokens"]) for one in answers] == [
        (tested.text(right[row.id]), right[row.id].tokens) for row in rows
    ]


def test_vllms_own_tokenizer_gives_our_ids_and_texts(tested, server):
    if server.kind != "vllm":
        return
    theirs, ours = ServerTokens(server.kind, server.url), tested.prompts
    for row in tested.toy_sequences(12):
        (_, instructions), (_, text) = row.turns
        assert theirs.encode_request(instructions, text, ()) == list(row.prompt_ids)
        assert theirs.encode_request("", text, ()) == ours.encode("", text)
        assert theirs.count(text) == ours.count(text)
        ids = ours.encode("", text)[1:-1]
        assert theirs.decode(ids) == ours.decode(ids)
    turns = (("user", "tree"), ("assistant", "river"), ("user", "stone"))
    assert theirs.encode_request("", "", turns) == ours.encode_conversation(turns)
    ids = ours.encode("", "tree river naive")[1:-1]
    assert b"".join(map(theirs.token_bytes, ids)).decode().strip() == "tree river naive"


def ids_there(url: str, text: str) -> list[int]:
    answer = httpx.post(f"{url}/tokenize", json={"content": text, "add_special": False, "parse_special": True})
    ids: list[int] = answer.json()["tokens"]
    return ids


def test_llamacpps_own_tokenizer_keeps_special_tokens_in_texts_apart_from_the_templates(tested, server):
    if server.kind != "llamacpp":
        return
    # It does not write a blank before each text, as the toy's tokenizer does, so that its ids are others.
    theirs = ServerTokens(server.kind, server.url)
    (system,), (user,), (assistant,) = (ids_there(server.url, f"<{role}>") for role in ("system", "user", "assistant"))
    plain, special = (theirs.encode_request("Repeat.", text, ()) for text in ("tree x", "<system> x"))
    for ids in (plain, special):
        assert [one for one in ids if one in (system, user, assistant)] == [system, user, assistant]
    assert "<system> x" in theirs.decode(special)
    assert "tree x" in theirs.decode(plain)
    tree = ids_there(server.url, "tree river naïve")
    assert b"".join(map(theirs.token_bytes, tree)).decode(errors="replace").startswith("tree river na")
    assert theirs.count("tree river naïve") == len(tree)
