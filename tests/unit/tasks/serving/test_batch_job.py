from collections.abc import Mapping
from typing import Any, cast

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from inference.prompt_format import PromptFormat
from inference.sequences import Sampling
from models.leases import Lease, TakenBatch, TakenRequest
from tasks.serving.batch_job import prepare


def words() -> PromptFormat:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PromptFormat("words", tokenizer.to_str(), None)


def taken(*prompts: TakenRequest) -> TakenBatch:
    return TakenBatch(Lease(1, 1), joins=True, iteration_limit=9, preempts=("x",), prompts=prompts)


def prompt(
    id: str, input: str, body: Mapping[str, object] | None = None, generated_ids: tuple[int, ...] = ()
) -> TakenRequest:
    return TakenRequest(id, "one", input, body or {}, 5, generated_ids)


def test_a_prompt_becomes_token_ids_with_what_earlier_slices_generated():
    job = prepare(taken(prompt("a", "two three", generated_ids=(3, 3))), words(), max_positions=10)
    (sequence,) = job.sequences
    assert (sequence.prompt_ids, sequence.generated_ids, sequence.limit) == ((1, 2, 3), (3, 3), 5)
    assert (job.joins, job.iteration_limit, job.preempts) == (True, 9, ("x",))


def test_what_a_client_said_about_sampling_and_stopping_reaches_the_engine():
    body = {"sampling": {"temperature": 0.5, "top_p": None, "top_k": 3, "seed": 7}, "stop": ["three"]}
    (sequence,) = prepare(taken(prompt("a", "two", body)), words(), max_positions=10).sequences
    assert sequence.sampling == Sampling(temperature=0.5, top_k=3, seed=7)
    assert sequence.stop == ("three",)


def test_a_conversation_is_encoded_turn_by_turn():
    body = {"messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "three"}]}
    (sequence,) = prepare(taken(prompt("a", "ignored", body)), words(), max_positions=30).sequences
    assert [word for word in sequence.prompt_ids if word > 1] == [2, 3]


def test_a_prompt_that_leaves_no_position_for_an_answer_is_set_apart():
    job = prepare(taken(prompt("a", "two " * 20), prompt("b", "two")), words(), max_positions=10)
    assert [sequence.id for sequence in job.sequences] == ["b"]
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "context_length_exceeded")]


def test_what_no_engine_accepts_is_set_apart_too():
    job = prepare(taken(prompt("a", "two", {"sampling": {"temperature": -1.0}})), words(), max_positions=10)
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_prompt")]


@pytest.mark.parametrize(
    "body", [["no", "object"], {"sampling": "hot"}, {"stop": 5}, {"messages": [{"role": "user"}]}, {"sampling": [1]}]
)
def test_a_row_that_another_program_wrote_differently_is_set_apart_from_its_mates(body: object):
    job = prepare(taken(prompt("a", "two", cast(Any, body)), prompt("b", "two")), words(), max_positions=10)
    assert [sequence.id for sequence in job.sequences] == ["b"]
    assert [(one.request_id, one.code) for one in job.unservable] == [("a", "invalid_prompt")]
    assert "its body is malformed" in job.unservable[0].message
