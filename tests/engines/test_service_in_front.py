"""From nothing but the address of a server to right answers: `magnus up --engine URL` and no configuration."""

import pytest

from cli.api_client import Client, output_text
from inference.remote.server_tokens import ServerTokens
from tests.e2e.whole_service import running_up

pytestmark = pytest.mark.timeout(400)  # vLLM takes minutes to start where others use the cores too
REQUESTS = 20
KINDS_WITH_TOKENIZERS = ("vllm", "llamacpp")


def test_a_service_in_front_of_the_server_gives_the_engines_answers(tested, server, right_engine):
    rows = tested.toy_sequences(REQUESTS, limit=200)
    right = right_engine.drain(rows)
    with running_up("--engine", server.url) as up, Client(up.url, up.key) as client:
        model = client.model()
        responses = [
            client.create({"model": model, "instructions": instructions, "input": text, "background": True})
            for (_, instructions), (_, text) in (row.turns for row in rows)
        ]
        answers = [client.wait(response["id"]) for response in responses]
    assert [(output_text(one), one["usage"]["output_tokens"]) for one in answers] == [
        (tested.text(right[row.id]), right[row.id].tokens) for row in rows
    ]


def test_the_servers_own_tokenizer_gives_our_ids_and_texts(tested, server):
    if server.kind not in KINDS_WITH_TOKENIZERS:
        assert not tested.engine.server.capabilities.tokenizer
        return
    theirs, ours = ServerTokens(server.kind, server.url), tested.prompts
    for row in tested.toy_sequences(12):
        (_, instructions), (_, text) = row.turns
        assert theirs.encode_request(instructions, text, ()) == list(row.prompt_ids)
        assert theirs.encode_request("", text, ()) == ours.encode("", text)
        assert theirs.count(text) == ours.count(text)
        assert theirs.decode(row.prompt_ids) == ours.decode(row.prompt_ids)
    turns = (("user", "tree"), ("assistant", "river"), ("user", "stone"))
    assert theirs.encode_request("", "", turns) == ours.encode_conversation(turns)
    ids = ours.encode("", "tree river naive")[1:-1]
    assert b"".join(map(theirs.token_bytes, ids)).decode().strip() == "tree river naive"
    assert theirs.count("") == 0
    assert theirs.decode([]) == ""


def test_a_special_token_in_a_text_stays_text_with_llamacpps_tokenizer(tested, server):
    if server.kind != "llamacpp":
        return
    theirs, ours = ServerTokens(server.kind, server.url), tested.prompts
    assert theirs.encode_request("Repeat.", "<eos> x", ()) == ours.encode("Repeat.", "<eos> x")
