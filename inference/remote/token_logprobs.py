"""Reads the log probabilities that servers stream beside their tokens; by token ids, so that no text is guessed at.

Everything that comes from a server is hostile: what has another shape is ServerGarbage.
"""

import math
import re
from collections.abc import Iterator, Mapping

from inference.remote.server_errors import ServerGarbage
from inference.sequences import TokenLogprob

TOKEN_ID = re.compile(r"token_id:(\d{1,10})")  # what vLLM writes for a token with `return_tokens_as_token_ids`
# Of a token that cannot come; JSON has no infinity, and vLLM has the same bound.
LEAST_LOGPROB = -9999.0
MOST_LISTED = 64  # tokens of one place; more than any server gives


def of_completion(logprobs: object) -> tuple[TokenLogprob, ...]:
    """Those of a chunk of `/v1/completions`, one for each of its tokens."""
    if logprobs is None:
        return ()
    if not isinstance(logprobs, Mapping):
        raise ServerGarbage("log probabilities that are none")
    tokens, values, tops = (logprobs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(values, list) and isinstance(tops, list)):
        raise ServerGarbage("log probabilities without tokens")
    if not len(tokens) == len(values) == len(tops):
        raise ServerGarbage("log probabilities of other tokens")
    return tuple(
        TokenLogprob(_id(token), _value(value), _likeliest(_listed(top)))
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def of_llamacpp(probabilities: object) -> tuple[TokenLogprob, ...]:
    """Those of a chunk of llama.cpp's `/completion`."""
    if probabilities is None:
        return ()
    if not isinstance(probabilities, list):
        raise ServerGarbage("log probabilities that are none")
    return tuple(
        TokenLogprob(*_pair(one), _likeliest(map(_pair, _list(one.get("top_logprobs")))))
        for one in map(_object, probabilities)
    )


def _listed(top: object) -> Iterator[tuple[int, float]]:
    if top is None:
        return
    if not isinstance(top, Mapping) or len(top) > MOST_LISTED:
        raise ServerGarbage("likeliest tokens that are none")
    for token, value in top.items():
        yield _id(token), _value(value)


def _likeliest(pairs: Iterator[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(pairs, key=lambda pair: -pair[1]))


def _pair(one: object) -> tuple[int, float]:
    found = _object(one)
    token = found.get("id")
    if type(token) is not int or not 0 <= token < 2**31:
        raise ServerGarbage("token ids that are none")
    return token, _value(found.get("logprob"))


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or len(value) > MOST_LISTED:
        raise ServerGarbage("likeliest tokens that are none")
    return value


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ServerGarbage("log probabilities that are none")
    return value


def _id(token: object) -> int:
    found = TOKEN_ID.fullmatch(token) if isinstance(token, str) else None
    if found is None or int(found[1]) >= 2**31:
        raise ServerGarbage("token ids that are none")
    return int(found[1])


def _value(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ServerGarbage("a log probability that is none")
    return max(LEAST_LOGPROB, min(0.0, float(value)))
