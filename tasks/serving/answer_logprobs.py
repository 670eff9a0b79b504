"""Log probabilities on their way: packed while their request waits again, then as OpenAI's API shows them. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from inference.sequences import FinishedSequence, TokenLogprob

Decode = Callable[[Sequence[int]], str]
TokenBytes = Callable[[int], bytes]
Json = dict[str, Any]


def packed(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    """What the row of a request that waits again holds of its tokens so far."""
    return [[one.id, one.logprob, one.likeliest] for one in logprobs]


def unpacked(stored: Sequence[Any]) -> tuple[TokenLogprob, ...]:
    """The same read again; raises ValueError or TypeError for what `packed` did not make."""
    return tuple(
        TokenLogprob(int(token), float(logprob), tuple((int(other), float(value)) for other, value in likeliest))
        for token, logprob, likeliest in stored
    )


def shown(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> list[Json]:
    """As the API shows them."""
    return [
        _entry(one.id, one.logprob, token_bytes)
        | {"top_logprobs": [_entry(token, value, token_bytes) for token, value in one.likeliest]}
        for one in logprobs
    ]


def of_text(ended: FinishedSequence, text: str, decode: Decode) -> tuple[TokenLogprob, ...]:
    """Those of the tokens that the text is made of: without the end of sequence, and what a stop string cut off."""
    kept = len(ended.generated_ids)
    if ended.reason == "eos":
        kept -= 1
    while ended.reason == "stop" and kept and decode(ended.generated_ids[: kept - 1]).startswith(text):
        kept -= 1
    return ended.logprobs[:kept]


def _entry(token: int, logprob: float, token_bytes: TokenBytes) -> Json:
    raw = token_bytes(token)
    # Postgres stores no NUL
    text = raw.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return {"token": text, "logprob": logprob, "bytes": list(raw)}
