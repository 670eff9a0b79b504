"""Tokens from logits: the truncations of transformers, the requested distribution, random numbers for each row."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from inference.local.tokens.sampling import greedy, sample, truncate, uniform_numbers
from protocol.responses.response_schemas import CreateResponse
from request_body import LEAST_TEMPERATURE, Sampling


@settings(deadline=None, derandomize=True)
@given(
    scores=st.lists(st.integers(-40, 40), min_size=2, max_size=30, unique=True),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    candidates=st.sampled_from([1, 2, 5, 64]),
)
def test_what_top_k_and_top_p_keep_is_what_transformers_keeps(scores, top_k, top_p, candidates):
    ours = truncate(torch.tensor([scores]) / 4, [Sampling(temperature=1, top_k=top_k, top_p=top_p)], candidates)
    theirs = torch.tensor([scores]) / 4
    if top_k:
        theirs = TopKLogitsWarper(min(top_k, len(scores)))(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    assert torch.equal(ours, theirs)


def test_evenly_spread_numbers_sample_each_token_as_often_as_it_is_likely():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    uniforms = [(n + 0.5) / 800 for n in range(800)]
    drawn = sample(logits.expand(800, -1), [Sampling(temperature=1)] * 800, uniforms).tolist()
    assert Counter(drawn) == {0: 400, 1: 200, 2: 100, 3: 100}


def test_rows_with_and_without_truncation_are_sampled_as_they_would_be_alone():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(2))
    samplings = [Sampling(0.7), Sampling(0.7, top_p=0.5), Sampling(2.0, top_k=3), Sampling(1.0)]
    uniforms = [0.1, 0.9, 0.6, 0.3]
    together = sample(logits, samplings, uniforms).tolist()
    alone = [sample(logits[n : n + 1], samplings[n : n + 1], uniforms[n : n + 1]).item() for n in range(4)]
    assert together == alone


EXTREMES = [-torch.inf, torch.inf, torch.nan, -3.4e38, 3.4e38, -1e30, 0.0, -0.0, 1e-45]
logits_of_a_row = st.lists(
    st.sampled_from(EXTREMES) | st.floats(-60, 60, width=32), min_size=1, max_size=90
)  # more than CANDIDATES


@st.composite
def admitted_samplings(draw: st.DrawFn) -> Sampling:
    """From whatever floats and integers the API admits to what a row is sampled with."""
    temperature = draw(st.sampled_from([0.0, 5e-324, 1e-310, 1e-45, 1e-38, 1e-5, 2.0]) | st.floats(0, 2))
    body = CreateResponse.model_validate(
        {
            "model": "m",
            "input": "x",
            "temperature": temperature,
            "top_p": draw(st.sampled_from([5e-324, 1e-45, 1e-38, 1 - 2**-53, 1.0]) | st.floats(5e-324, 1)),
            "magnus": {
                "top_k": draw(st.sampled_from([0, 1, 2, 64, 65, 2**31 - 1])),
                "seed": draw(st.none() | st.sampled_from([0, 2**31, 2**63 - 1]) | st.integers(0, 2**63 - 1)),
            },
        }
    )
    assert body.temperature is not None
    assert body.top_p is not None
    return Sampling(body.temperature, body.top_p, body.magnus.top_k or 0, body.magnus.seed)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    row=logits_of_a_row,
    sampling=admitted_samplings(),
    uniform=st.none() | st.sampled_from([0.0, 0.5, 1 - 2**-53]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_whatever_the_api_admits_a_token_of_the_vocabulary_is_drawn_and_none_that_is_ruled_out(
    row, sampling, uniform, dtype
):
    logits = torch.tensor([row, row[::-1]], dtype=torch.float32).to(dtype)
    uniforms = uniform_numbers(sampling, 2) if uniform is None else [uniform] * 2
    drawn = greedy(logits) if sampling.greedy else sample(logits, [sampling] * 2, uniforms)
    for token, of_row in zip(drawn.tolist(), logits.float().tolist(), strict=True):
        assert 0 <= token < len(row)
        allowed = [logit for logit in of_row if logit > -torch.inf]
        assert not allowed or torch.isnan(torch.tensor(of_row)).any() or of_row[token] > -torch.inf


def test_the_colder_the_closer_to_the_likeliest_and_below_the_least_temperature_it_is_the_likeliest():
    logits = torch.tensor([[10.0, 10.01, -5.0]])
    assert sample(logits, [Sampling(LEAST_TEMPERATURE)], [0.999]).item() == 1
    assert Sampling(LEAST_TEMPERATURE / 2).greedy
    assert not Sampling(LEAST_TEMPERATURE).greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_first_of_the_likeliest(dtype):
    logits = torch.tensor([[1, 5, 5, 0], [7, 2, 7, 7], [-3, -2, -1, -1]], dtype=dtype)
    assert greedy(logits).tolist() == [1, 0, 2]


def test_a_seed_fixes_the_random_numbers_and_a_longer_limit_only_appends():
    assert uniform_numbers(Sampling(1, seed=4), 30)[:10] == uniform_numbers(Sampling(1, seed=4), 10)
    assert uniform_numbers(Sampling(1, seed=4), 10) != uniform_numbers(Sampling(1, seed=5), 10)
    assert uniform_numbers(Sampling(1), 10) != uniform_numbers(Sampling(1), 10)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": torch.inf},
        {"temperature": torch.nan},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_p": torch.nan},
        {"top_k": -1},
        {"seed": -1},
    ],
)
def test_sampling_refuses_what_has_no_meaning(wrong):
    with pytest.raises(ValueError, match="top_k"):
        Sampling(**wrong)
