"""Bodies as servers want them and chunks as they come; whatever else comes is garbage."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine_requests import DecodingRequest, JsonFormat
from inference.remote.remote_row import RemoteRow
from inference.remote.server_capabilities import ProbedServer, ServerCapabilities
from inference.remote.server_errors import ServerBusy, ServerFailed, ServerGarbage
from inference.remote.wire_formats import (
    WIRE_FORMATS,
    Chunk,
    RowRequest,
    chat_body,
    completions_body,
    llamacpp_body,
    read_chat,
    read_completion,
    read_llamacpp,
)
from request_body import Sampling

SERVER = ProbedServer("http://h", "vllm", "m", ServerCapabilities())
ROW = RowRequest(DecodingRequest("r", (1, 2), 9, sampling=Sampling(0.5, 0.9, 4, 7), stop=("x",), priority=2), (3,), 8)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "delta", "x"]), inner),
    max_leaves=6,
)


def test_a_completion_is_asked_with_all_ids_so_far() -> None:
    body = completions_body(SERVER, ROW)
    assert (body["prompt"], body["max_tokens"], body["return_token_ids"]) == ([1, 2, 3], 8, True)
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"], body["stop"]) == (0.5, 0.9, 4, 7, ["x"])
    assert "priority" not in body  # a server without priorities refuses it


def test_a_chat_is_asked_with_its_turns() -> None:
    row = RowRequest(DecodingRequest("r", (1,), 9, turns=(("system", "s"), ("user", "u"))), (), 9)
    body = chat_body(SERVER, row)
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert body["temperature"] == 0.0
    assert not {"seed", "top_k", "top_p", "stop"} & body.keys()


def test_a_chat_passes_on_how_to_sample() -> None:
    body = chat_body(ProbedServer("http://h", "openai", "m", ServerCapabilities()), ROW)
    assert (body["top_p"], body["top_k"], body["seed"], body["stop"]) == (0.9, 4, 7, ["x"])
    assert body["stream_options"] == {"include_usage": True}


def test_llamacpp_gets_ids_and_no_penalty_of_its_own() -> None:
    body = llamacpp_body(SERVER, ROW)
    assert (body["prompt"], body["n_predict"], body["seed"], body["repeat_penalty"]) == ([1, 2, 3], 8, 7, 1.0)


def test_llamacpp_uses_its_prompt_cache_only_where_no_seed_asks_for_the_same_text_again() -> None:
    def cached(sampling: Sampling) -> bool:
        return bool(
            llamacpp_body(SERVER, replace(ROW, sequence=replace(ROW.sequence, sampling=sampling)))["cache_prompt"]
        )

    assert [cached(Sampling(0.5, seed=7)), cached(Sampling(0.5)), cached(Sampling(seed=7))] == [False, True, True]


def test_chunks_are_read() -> None:
    chunk = {"choices": [{"text": "ab", "token_ids": [5, 6], "finish_reason": "stop", "stop_reason": None}]}
    assert read_completion(chunk) == Chunk((5, 6), "ab", None, "eos")
    chunk = {"choices": [{"text": "", "finish_reason": "stop", "stop_reason": "x"}]}
    assert read_completion(chunk).reason == "stop"
    assert read_completion({"choices": [], "usage": {"completion_tokens": 4}}) == Chunk(counted=4)
    last = {"choices": [{"delta": {"role": "assistant", "content": "a"}, "finish_reason": "length"}]}
    assert read_chat(last) == Chunk((), "a", None, "limit")
    assert read_chat({"choices": [], "usage": {"completion_tokens": 4}}) == Chunk(counted=4)
    assert read_llamacpp({"content": "a", "tokens": [5], "stop": False}) == Chunk((5,), "a")
    ended = {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 3}
    assert read_llamacpp(ended) == Chunk((), "", 3, "eos")


def test_the_tokens_that_a_server_had_cached_are_read_from_its_last_chunk() -> None:
    usage = {"completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    for read in (read_completion, read_chat):
        assert read({"choices": [], "usage": usage}) == Chunk(counted=4, cached=3)
        assert read({"choices": [], "usage": usage | {"prompt_tokens_details": None}}).cached is None
    ended = {"content": "", "tokens": [], "stop": True, "stop_type": "eos", "tokens_predicted": 4}
    assert read_llamacpp(ended | {"timings": {"cache_n": 3, "prompt_n": 1}}).cached == 3
    assert read_llamacpp(ended | {"timings": {"prompt_n": 1}}).cached is None
    assert completions_body(SERVER, ROW)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("by_ids", [True, False])
def test_a_row_tells_the_cached_tokens_that_its_first_request_found_in_its_prompt(by_ids: bool) -> None:
    row = RemoteRow(replace(ROW.sequence, stop=()), 9, 9, by_ids, by_ids, 0.0)
    row.take(Chunk((4,), "a", reason="eos"), 1.0, None)
    assert row.result().cached_tokens is None
    row.take(Chunk(counted=1, cached=5), 1.0, None)  # after its end; a server may count its own template, too
    row.take(Chunk(counted=1, cached=0), 1.0, None)
    assert row.result().cached_tokens == len(ROW.sequence.prompt_ids)


def test_a_format_and_log_probabilities_are_asked_for_as_each_server_wants() -> None:
    asked = replace(ROW.sequence, format=JsonFormat('{"enum": [1]}'), top_logprobs=0)
    row = replace(ROW, sequence=asked)
    body = completions_body(SERVER, row)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {"enum": [1]}},
    }
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (0, True)
    assert (llamacpp_body(SERVER, row)["json_schema"], llamacpp_body(SERVER, row)["n_probs"]) == ({"enum": [1]}, 1)
    any_object = replace(ROW, sequence=replace(asked, format=JsonFormat(), top_logprobs=4))
    assert completions_body(SERVER, any_object)["response_format"] == {"type": "json_object"}
    assert llamacpp_body(SERVER, any_object)["json_schema"] == {"type": "object"}
    assert llamacpp_body(SERVER, any_object)["n_probs"] == 4
    assert not {"response_format", "logprobs", "cache_salt"} & completions_body(SERVER, ROW).keys()


def test_a_pattern_is_asked_for_in_vllms_words() -> None:
    body = completions_body(SERVER, replace(ROW, sequence=replace(ROW.sequence, format=JsonFormat(pattern="a|b"))))
    assert body["structured_outputs"] == {"regex": "a|b"}
    assert "response_format" not in body
    body = completions_body(SERVER, replace(ROW, sequence=replace(ROW.sequence, format=JsonFormat(grammar="start: A"))))
    assert body["structured_outputs"] == {"grammar": "start: A"}


def test_what_else_a_row_asks_for_is_passed_on_and_a_least_length_counts_what_came_before() -> None:
    asked = replace(
        ROW.sequence,
        sampling=Sampling(0.5, min_p=0.1, repetition_penalty=1.5, ignore_eos=True, min_tokens=4, stop_token_ids=(5,)),
    )
    row = replace(ROW, sequence=asked)
    body = completions_body(SERVER, row)
    assert (body["min_p"], body["repetition_penalty"], body["ignore_eos"]) == (0.1, 1.5, True)
    assert (body["min_tokens"], body["stop_token_ids"]) == (3, [5])
    assert "min_tokens" not in completions_body(SERVER, replace(row, generated_ids=(3, 3, 3, 3)))
    llamacpp = llamacpp_body(SERVER, row)
    assert (llamacpp["min_p"], llamacpp["repeat_penalty"]) == (0.1, 1.5)
    assert llamacpp["repeat_last_n"] == len(llamacpp["prompt"]) + row.limit == 11  # never -1, which servers refuse
    assert llamacpp["ignore_eos"] is True
    assert not {"ignore_eos", "min_tokens", "stop_token_ids"} & completions_body(SERVER, ROW).keys()


def test_openais_penalties_and_biases_are_passed_on_by_their_names_to_every_server() -> None:
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=-1.0, logit_bias=((7, -100.0),))
    row = replace(ROW, sequence=replace(ROW.sequence, sampling=sampling))
    asked = {"frequency_penalty": 0.5, "presence_penalty": -1.0, "logit_bias": {"7": -100.0}}
    for body in (completions_body, chat_body, llamacpp_body):
        pairs = {"logit_bias": [[7, -100.0]]} if body is llamacpp_body else {}
        assert body(SERVER, row).items() >= (asked | pairs).items()
        assert not asked.keys() & body(SERVER, ROW).keys()


def test_a_row_ends_with_its_stop_token_whatever_the_server_does() -> None:
    row = RemoteRow(replace(ROW.sequence, stop=(), sampling=Sampling(stop_token_ids=(5,))), 9, 9, True, True, 0.0)
    assert row.take(Chunk((4, 5, 6)), 1.0, None) == "eos"
    assert row.ids == [4, 5]


def test_a_server_lacks_what_it_was_not_found_to_have() -> None:
    assert {"min_p", "repetition_penalty", "ignore_eos", "min_tokens"} <= set(ServerCapabilities().lacks)
    assert {"stop_token_ids", "raw_prompt", "tools", "prompt_logprobs"} <= set(ServerCapabilities().lacks)
    able = ServerCapabilities(token_ids_in=True, token_ids_out=True, options=frozenset({"min_p"}))
    assert not {"min_p", "stop_token_ids", "raw_prompt", "tools"} & set(able.lacks)
    assert "prompt_logprobs" in able.lacks
    assert any("min_tokens" in loss for loss in able.losses())


def test_a_salt_goes_to_servers_that_take_one() -> None:
    salted = replace(ROW, sequence=replace(ROW.sequence, cache_salt="abc"))
    assert "cache_salt" not in completions_body(SERVER, salted)
    takes = replace(SERVER, capabilities=ServerCapabilities(cache_salt=True))
    assert completions_body(takes, salted)["cache_salt"] == "abc"


def test_a_budget_of_thinking_goes_to_vllm_whole_also_for_a_resumed_row() -> None:
    assert "thinking_token_budget" not in completions_body(SERVER, ROW)
    budget = replace(ROW, sequence=replace(ROW.sequence, sampling=Sampling(thinking_token_budget=5)))
    assert completions_body(SERVER, budget)["thinking_token_budget"] == 5
    assert "thinking_token_budget" in ServerCapabilities().lacks


def test_a_lone_surrogate_in_a_text_is_replaced() -> None:
    assert read_chat({"choices": [{"delta": {"content": "a\ud800"}}]}).text == "a\ufffd"


def test_a_full_cache_of_llamacpp_is_no_failure_of_the_row() -> None:
    with pytest.raises(ServerBusy):
        read_llamacpp({"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}})


@pytest.mark.parametrize("read", [read_completion, read_chat, read_llamacpp])
def test_an_error_in_the_stream_is_the_servers_failure(read) -> None:
    with pytest.raises(ServerFailed, match="too much"):
        read({"error": {"message": "too much"}})
    with pytest.raises(ServerFailed):
        read_completion({"choices": [{"finish_reason": "abort"}]})


@pytest.mark.parametrize("kind", list(WIRE_FORMATS))
@given(JSON)
def test_whatever_else_comes_is_read_or_garbage(kind, data) -> None:
    fields = ("choices", "content", "tokens", "tokens_predicted", "usage", "stop", "stop_type", "timings")
    with suppress(ServerGarbage, ServerFailed):
        WIRE_FORMATS[kind].read(dict.fromkeys(fields, data) | {"content": ""})
