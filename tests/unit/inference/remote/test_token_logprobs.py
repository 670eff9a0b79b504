"""Log probabilities as vLLM and llama.cpp stream them; whatever else comes is garbage."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine_requests import LEAST_LOGPROB, TokenLogprob
from inference.remote.server_errors import ServerGarbage
from inference.remote.token_logprobs import completion_logprobs, llamacpp_logprobs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("token_id:4"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tokens", "token_logprobs", "top_logprobs", "id", "logprob", "token_id:7"]), inner
        )
    ),
    max_leaves=12,
)


def test_vllms_are_read_by_token_id_the_likeliest_first() -> None:
    streamed = {
        "text_offset": [0, 12],
        "tokens": ["token_id:606", "token_id:1"],
        "token_logprobs": [-2.5, 0.0],
        "top_logprobs": [{"token_id:606": -2.5, "token_id:9": -0.25}, {"token_id:1": 0.0}],
    }
    assert completion_logprobs(streamed) == (
        TokenLogprob(606, -2.5, ((9, -0.25), (606, -2.5))),
        TokenLogprob(1, 0.0, ((1, 0.0),)),
    )


def test_llamacpps_are_read_by_token_id() -> None:
    streamed = [{"id": 1, "token": "", "bytes": [], "logprob": -0.5, "top_logprobs": [{"id": 1, "logprob": -0.5}]}]
    assert llamacpp_logprobs(streamed) == (TokenLogprob(1, -0.5, ((1, -0.5),)),)


def test_where_none_were_asked_for_there_are_none() -> None:
    assert completion_logprobs(None) == llamacpp_logprobs(None) == ()


def test_what_cannot_come_has_a_finite_log_probability() -> None:
    (known,) = llamacpp_logprobs([{"id": 1, "logprob": -math.inf, "top_logprobs": [{"id": 2, "logprob": 3.0}]}])
    assert known == TokenLogprob(1, LEAST_LOGPROB, ((2, 0.0),))


@pytest.mark.parametrize(
    "streamed",
    [
        {"tokens": ["tree"], "token_logprobs": [-1.0], "top_logprobs": [None]},
        {"tokens": ["token_id:1"], "token_logprobs": [], "top_logprobs": [None]},
        {"tokens": ["token_id:1"], "token_logprobs": [True], "top_logprobs": [None]},
        {"tokens": ["token_id:9999999999"], "token_logprobs": [-1.0], "top_logprobs": [None]},
        {"tokens": ["token_id:1"], "token_logprobs": [-1.0], "top_logprobs": [{f"token_id:{n}": 0 for n in range(65)}]},
        {"tokens": ["token_id:1"], "token_logprobs": [math.nan], "top_logprobs": [None]},
    ],
)
def test_other_shapes_are_garbage(streamed) -> None:
    with pytest.raises(ServerGarbage):
        completion_logprobs(streamed)


@given(JSON)
def test_whatever_comes_is_read_or_garbage(streamed) -> None:
    for read in (completion_logprobs, llamacpp_logprobs):
        with suppress(ServerGarbage):
            assert all(0 <= one.id < 2**31 and LEAST_LOGPROB <= one.logprob <= 0 for one in read(streamed))
