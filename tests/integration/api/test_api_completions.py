"""/v1/completions as the original has it: prompts as they are, several of them, several answers, log probabilities."""

from typing import Any

import pytest

from tests.integration.answering_worker import answering, events
from tests.integration.api_service import Api

PATH = "/v1/completions"
PROMPT = {"model": "words", "prompt": "eins zwei"}


def logprob(token: str, value: float) -> dict[str, Any]:
    entry = {"token": token, "logprob": value, "bytes": list(token.encode())}
    return entry | {"top_logprobs": [entry, {**entry, "token": "x", "logprob": value - 1}]}


def test_a_prompt_is_read_as_it_is_and_goes_on_for_sixteen_tokens_by_default(api: Api) -> None:
    with answering(api):
        assert api.call("POST", PATH, json=PROMPT).status_code == 200
    [row] = api.sql("select limit_tokens, body, needs, instructions, input from requests")
    assert (row.limit_tokens, row.body["raw"], row.needs) == (16, True, ["raw_prompt"])
    assert (row.instructions, row.input) == ("", "eins zwei")


def test_usage_tells_the_cached_tokens_of_prompts_if_the_engine_says_them(api: Api) -> None:
    chat = {"model": "words", "messages": [{"role": "user", "content": "eins zwei"}]}
    streamed = chat | {"stream": True, "stream_options": {"include_usage": True}}
    with answering(api, cached_tokens=2):
        completion = api.call("POST", PATH, json=PROMPT | {"prompt": ["a b", "c d"], "n": 2}).json["usage"]
        whole = api.call("POST", "/v1/chat/completions", json=chat).json["usage"]
        last = events(api.call("POST", "/v1/chat/completions", json=streamed))[-1]["usage"]
        response = api.call("POST", "/v1/responses", json={"model": "words", "input": "eins"}).json["usage"]
    # each prompt once, as `prompt_tokens` counts
    assert completion["prompt_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
    cached = {"cached_tokens": 2, "cache_write_tokens": 0}
    assert whole["prompt_tokens_details"] == last["prompt_tokens_details"] == cached
    assert response["input_tokens_details"] == cached
    with answering(api):
        assert "prompt_tokens_details" not in api.call("POST", PATH, json=PROMPT).json["usage"]


@pytest.mark.parametrize(
    ("prompt", "stored"),
    [
        ([0, 0], [("[UNK] [UNK]", [0, 0])]),
        (["a", "b c"], [("a", None), ("b c", None)]),
        ([[0], [0, 0]], [("[UNK]", [0]), ("[UNK] [UNK]", [0, 0])]),
    ],
)
def test_each_prompt_of_a_list_is_answered_in_its_order(api: Api, prompt: Any, stored: list[Any]) -> None:
    with answering(api):
        answer = api.call("POST", PATH, json=PROMPT | {"prompt": prompt}).json
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(stored)))
    rows = api.sql("select input, body -> 'prompt_ids' as ids from requests order by arrived_at")
    assert [(row.input, row.ids) for row in rows] == stored
    tokens = sum(len(ids or text.split()) for text, ids in stored)
    assert answer["usage"]["prompt_tokens"] == tokens
    assert answer["usage"]["completion_tokens"] == len(stored)


def test_several_answers_to_a_prompt_have_seeds_of_their_own_and_its_tokens_count_once(api: Api) -> None:
    with answering(api):
        asked = PROMPT | {"prompt": ["a b", "c"], "n": 2, "seed": 7, "temperature": 1.0, "best_of": 2}
        answer = api.call("POST", PATH, json=asked).json
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    rows = api.sql("select input, body -> 'sampling' -> 'seed' as seed from requests order by arrived_at")
    assert [(row.input, row.seed) for row in rows] == [("a b", 7), ("a b", 8), ("c", 7), ("c", 8)]


def test_a_retry_under_the_same_key_finds_all_answers_of_the_call(api: Api) -> None:
    asked = PROMPT | {"prompt": ["a", "b"], "n": 2}
    with answering(api):
        first = api.call("POST", PATH, json=asked, headers={"Idempotency-Key": "k"}).json
        again = api.call("POST", PATH, json=asked, headers={"Idempotency-Key": "k"}).json
    assert again == first
    assert len(api.sql("select id from requests")) == 4


def test_if_one_prompt_is_refused_none_is_stored(api: Api) -> None:
    answer = api.call("POST", PATH, json=PROMPT | {"prompt": ["a", "b " * 60]})
    assert (answer.status_code, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length" in answer.json["error"]["message"]
    assert api.sql("select id from requests") == []


def test_echo_with_log_probabilities_gives_those_of_prompt_and_answer(api: Api) -> None:
    entries = [logprob("eins", 0.0), logprob(" zwei", -1.5), logprob(" drei", -0.5)]
    with answering(api, " drei", logprobs=entries):
        asked = PROMPT | {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        [choice] = api.call("POST", PATH, json=asked).json["choices"]
    assert choice["text"] == "eins zwei drei"
    assert choice["logprobs"] == {
        "tokens": ["eins", " zwei", " drei"],
        "token_logprobs": [None, -1.5, -0.5],
        "top_logprobs": [None, {" zwei": -1.5, "x": -2.5}, {" drei": -0.5, "x": -1.5}],
        "text_offset": [0, 4, 9],
    }
    [row] = api.sql("select body, needs, id from requests")
    assert row.needs == ["logprobs", "raw_prompt", "prompt_logprobs"]
    [item] = api.call("GET", f"/v1/responses/{row.id}").json["output"]
    assert [one["token"] for one in item["content"][0]["logprobs"]] == [" drei"]


def test_without_echo_the_first_token_has_its_log_probability(api: Api) -> None:
    with answering(api, "drei", logprobs=[logprob("drei", -0.5)]):
        [choice] = api.call("POST", PATH, json=PROMPT | {"logprobs": 0}).json["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5]


def test_each_chunk_of_a_stream_has_the_tokens_so_far_where_that_is_wanted(api: Api) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with answering(api, "drei vier"):
        chunks = events(api.call("POST", PATH, json=PROMPT | {"stream": True, "stream_options": options}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[-1], chunks[-1]["choices"]) == (2, [])
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {2}


def test_a_stream_of_several_answers_tells_them_apart_and_ends_once(api: Api) -> None:
    asked = PROMPT | {"n": 2, "stream": True, "echo": True, "stream_options": {"include_usage": True}}
    with answering(api, " drei"):
        stream = api.call("POST", PATH, json=asked)
        chunks = events(stream)
    texts = dict.fromkeys((0, 1), "")
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "eins zwei drei", 1: "eins zwei drei"}
    assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert stream.get_data(as_text=True).count("[DONE]") == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]].count("stop") == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [5]}, "prompt"),  # the vocabulary has one token
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"n": 129}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "b"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"logit_bias": {"no": 1}}, "logit_bias.no"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [0] * 65}, "stop_token_ids"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(refusing_api: Api, fields: dict[str, Any], param: str) -> None:
    answer = refusing_api.call("POST", PATH, json=PROMPT | fields)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)


SAMPLED = {
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "ignore_eos": True,
    "min_tokens": 3,
    "stop_token_ids": [0],
    "top_k": 5,
    "temperature": 1.0,
}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, {"prompt": "eins"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "eins"}]}),
        ("/v1/responses", {"input": "eins"}),
    ],
)
def test_sampling_fields_of_other_servers_reach_the_worker_with_what_they_need(
    api: Api, path: str, fields: dict[str, Any]
) -> None:
    with answering(api):
        assert api.call("POST", path, json={"model": "words"} | fields | SAMPLED).status_code == 200
    [row] = api.sql("select body, needs from requests")
    sampling = {"temperature": 1.0, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}
    assert row.body["sampling"] == sampling | {"ignore_eos": True, "min_tokens": 3, "stop_token_ids": [0]}
    asked = {"temperature", "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids"}
    assert asked <= set(row.needs)
