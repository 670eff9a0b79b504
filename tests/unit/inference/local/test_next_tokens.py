"""What rows ask of their logits: penalties, least lengths, log probabilities; other rows do not notice."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from inference.engine_requests import LEAST_LOGPROB, DecodingRequest
from inference.local.batch_rows import BatchRow
from inference.local.engine import Engine
from inference.local.next_tokens import adjusted, log_probabilities, next_tokens, penalised
from inference.local.tokens.sampling import sample
from request_body import Sampling
from tests.unit.inference.tiny_models import AMPLE, ANSWER, EOS, POSITIONS, VOCABULARY, drain

EXTREMES = [-torch.inf, torch.inf, torch.nan, -3.4e38, 3.4e38, -1e30, 0.0, -0.0, 1e-45]
logits_of_a_row = st.lists(st.sampled_from(EXTREMES) | st.floats(-60, 60, width=32), min_size=8, max_size=90)


def row(*, generated=(), **options):
    return BatchRow(DecodingRequest("a", (1, 2), 50, generated_ids=generated, **options), 0, POSITIONS)


@settings(deadline=None, derandomize=True)
@given(
    scores=st.lists(st.integers(-40, 40), min_size=4, max_size=30, unique=True),
    seen=st.sets(st.integers(0, 3)),
    penalty=st.floats(0.05, 20),
)
def test_repetitions_are_penalised_as_transformers_does_it(scores, seen, penalty):
    own = torch.tensor(scores) / 4
    ours = penalised(own, torch.tensor([n in seen for n in range(len(scores))]), penalty)
    theirs = own[None].clone()
    if seen:
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([sorted(seen)]), theirs)
    assert torch.allclose(ours, theirs[0])


@settings(deadline=None, derandomize=True)
@given(
    scores=st.lists(st.integers(-40, 40), min_size=2, max_size=30, unique=True),
    min_p=st.floats(0.001, 0.999),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_what_min_p_rules_out_is_what_transformers_rules_out(scores, min_p, uniform):
    kept = MinPLogitsWarper(min_p)(None, torch.tensor([scores]) / 4)
    theirs = sample(kept, [Sampling(1.0)], [uniform])
    assert sample(torch.tensor([scores]) / 4, [Sampling(1.0, min_p=min_p)], [uniform]).equal(theirs)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    logits=logits_of_a_row,
    temperature=st.sampled_from([0.0, 1e-5, 1.0, 2.0]),
    min_p=st.sampled_from([0.0, 5e-324, 1e-30, 0.5, 1.0]),
    penalty=st.sampled_from([0.01, 0.5, 1.0, 1.3, 100.0]),
    counted=st.sampled_from([0.0, -2.0, 2.0, 1e38]),
    logit_bias=st.sampled_from([(), ((0, 100.0), (2**31 - 1, -100.0)), ((1, -1e38),)]),
    min_tokens=st.sampled_from([0, 1, 50]),
    stop_token_ids=st.sampled_from([(), (0,), (3, 2**31 - 1)]),
    ignore_eos=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_whatever_a_row_asks_for_it_gets_a_token_of_the_vocabulary(
    logits, temperature, min_p, penalty, counted, logit_bias, min_tokens, stop_token_ids, ignore_eos, dtype
):
    asked = row(
        sampling=Sampling(
            temperature,
            min_p=min_p,
            repetition_penalty=penalty,
            frequency_penalty=counted,
            presence_penalty=counted,
            logit_bias=logit_bias,
            seed=3,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
        top_logprobs=2,
    )
    plain = row()
    given_logits = torch.tensor([logits, logits]).to(dtype)
    alone = next_tokens(given_logits[:1].clone(), [plain], frozenset({4})).item()
    token, beside = next_tokens(given_logits, [asked, plain], frozenset({4})).tolist()
    assert beside == alone
    assert 0 <= token < len(logits)
    [known] = asked.logprobs
    assert known.id == token
    assert all(LEAST_LOGPROB <= value <= 1e-4 for value in (known.logprob, *(value for _, value in known.likeliest)))
    allowed = [n for n, logit in enumerate(logits) if logit > -math.inf]
    if min_tokens and not any(math.isnan(logit) for logit in logits) and set(allowed) - asked.ends(frozenset({4})):
        assert token not in asked.ends(frozenset({4}))


def test_each_time_that_the_answer_has_a_token_lowers_its_logit_and_the_prompt_does_not():
    asked = row(generated=(3, 3), sampling=Sampling(frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((1, 2),)))
    scores = adjusted(torch.zeros(1, 6), [asked], frozenset())
    assert scores.tolist() == [[0, 2, 0, -1.25, 0, 0]]
    asked.append(3, frozenset(), None)
    asked.append(5, frozenset(), None)
    assert adjusted(torch.zeros(1, 6), [asked], frozenset()).tolist() == [[0, 2, 0, -1.75, 0, -0.75]]


def test_hundreds_of_biases_of_a_row_are_added_by_one_operation():
    biased = row(sampling=Sampling(logit_bias=tuple((token, 1.0) for token in range(300))))
    one = row(sampling=Sampling(logit_bias=((7, 1.0),)))

    def operations(asked):
        with torch.profiler.profile() as profiled:
            adjusted(torch.zeros(1, 400), [asked], frozenset())
        return sum(event.count for event in profiled.key_averages())

    for asked in (biased, one):
        adjusted(torch.zeros(1, 400), [asked], frozenset())  # makes what later tokens use
    assert operations(biased) == operations(one)
    assert adjusted(torch.zeros(1, 400), [biased], frozenset()).sum() == 300


@pytest.mark.parametrize(("bias", "repeats"), [(-100.0, False), (100.0, True)])
def test_a_bias_bans_a_token_or_lets_no_other_come(llama, bias, repeats):
    answered = llama.pool[0]
    token = answered.answer[0]
    biased = answered.sequence("a", sampling=Sampling(logit_bias=((token, bias),)))
    [done], _ = Engine(llama.loaded, AMPLE).run([biased])
    assert (set(done.generated_ids) == {token}) is repeats
    assert (token in done.generated_ids) is repeats


def test_a_log_probability_is_that_of_the_model_whatever_sampling_made_of_it():
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    asked = row(sampling=Sampling(1.0, top_k=1, repetition_penalty=100.0, seed=1), top_logprobs=2)
    assert next_tokens(logits, [asked], frozenset()).item() == 0
    [known] = asked.logprobs
    assert math.isclose(known.logprob, math.log(0.5), rel_tol=1e-5)
    assert [token for token, _ in known.likeliest] == [0, 1]


def test_more_likeliest_tokens_than_the_vocabulary_has_are_all_of_them():
    [known] = log_probabilities(torch.zeros(1, 3), [2], [20])
    assert len(known.likeliest) == 3


def test_a_row_that_ignores_its_end_of_sequence_goes_on_to_its_limit(llama):
    answered = next(one for one in llama.pool if one.answer[-1] == EOS)
    engine = Engine(llama.loaded, AMPLE)
    engine.insert([answered.sequence("all", sampling=Sampling(ignore_eos=True)), answered.sequence("some")])
    done = drain(engine)
    assert (done["all"].reason, len(done["all"].generated_ids)) == ("limit", ANSWER)
    assert done["all"].generated_ids[: len(answered.answer)] == answered.answer
    assert (done["some"].reason, done["some"].generated_ids) == ("eos", answered.answer)


def test_a_row_gets_no_end_of_sequence_before_its_least_length(llama):
    answered = next(one for one in llama.pool if one.answer[-1] == EOS)
    least = len(answered.answer) + 1
    engine = Engine(llama.loaded, AMPLE)
    [done], _ = engine.run([answered.sequence("a", sampling=Sampling(min_tokens=least))])
    assert EOS not in done.generated_ids[:least]


def test_a_stop_token_ends_a_row_like_an_end_of_sequence(endless):
    answered = endless.pool[0]
    third = answered.answer[2]
    engine = Engine(endless.loaded, AMPLE)
    [done], _ = engine.run([answered.sequence("a", sampling=Sampling(stop_token_ids=(third, VOCABULARY + 5)))])
    assert done.reason == "eos"
    assert done.generated_ids == answered.answer[: answered.answer.index(third) + 1]


@pytest.mark.parametrize("cut", [0, 3, 7])
def test_a_preempted_row_has_the_log_probabilities_of_all_its_tokens(endless, cut):
    answered = endless.pool[0]
    engine = Engine(endless.loaded, AMPLE)
    [whole], _ = engine.run([answered.sequence("a", top_logprobs=1)])
    engine.insert([answered.sequence("a", top_logprobs=1)])
    for _ in range(cut):
        engine.step()
    engine.insert([engine.preempt("a")])
    resumed = drain(engine)["a"]
    assert resumed.generated_ids == whole.generated_ids
    assert [one.id for one in resumed.logprobs] == [one.id for one in whole.logprobs]
    assert all(
        math.isclose(one.logprob, other.logprob, abs_tol=1e-3)
        for one, other in zip(resumed.logprobs, whole.logprobs, strict=True)
    )


def test_the_log_probabilities_of_a_prompt_are_those_of_the_models_own_forward_pass(each_model):
    answered = max(each_model.pool, key=lambda one: len(one.prompt_ids))
    other = each_model.pool[0]
    engine = Engine(each_model.loaded, AMPLE)
    asked = answered.sequence("a", limit=1, top_logprobs=2, prompt_logprobs=True)
    done, _ = engine.run([other.sequence("b"), asked])
    [beside, told] = done
    assert beside.generated_ids == other.answer
    assert [one.id for one in told.prompt_logprobs] == list(answered.prompt_ids)
    # the log probabilities after each beginning of the prompt, by the same engine
    for place in {1, len(answered.prompt_ids) // 2, len(answered.prompt_ids) - 1} - {0}:
        cut = DecodingRequest("c", answered.prompt_ids[:place], 1, top_logprobs=1)
        [begun], _ = engine.run([cut])
        likeliest = told.prompt_logprobs[place].likeliest[0]
        assert math.isclose(likeliest[1], begun.logprobs[0].likeliest[0][1], abs_tol=1e-3)
    assert told.logprobs[0].id == answered.answer[0]


def test_no_answer_has_a_token_that_the_model_suppresses(llama):
    answered = llama.pool[0]
    held = replace(llama.loaded, suppressed_ids=(answered.answer[0],))
    [done], _ = Engine(held, AMPLE).run([answered.sequence("a")])
    assert answered.answer[0] not in done.generated_ids
    scores = torch.tensor([[1.0, 3.0, 2.0]])
    assert next_tokens(scores, [row()], frozenset(), (1,)).tolist() == [2]
