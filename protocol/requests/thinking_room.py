"""Says how many tokens an answer may think: as many as the client allows, or as many as leave room for the answer."""

from dataclasses import replace

from inference.prompts.request_tokens import RequestTokens
from protocol.client_errors import InvalidRequest
from request_body import RequestBody

BUDGET = "thinking_token_budget"
# With "auto", this share of the limit is kept for the answer behind the thinking, and at least so many tokens, of which
# the tags take some. Not tuned
ANSWER_SHARE = 0.25
LEAST_ANSWER_TOKENS = 24


def with_thinking_room(body: RequestBody, limit_tokens: int, tokens: RequestTokens, *, param: str) -> RequestBody:
    """Returns the body with its thinking's budget as a number; raises InvalidRequest, naming `param`.

    A model that never thinks gets none: a budget that the client can do without is dropped, another one refused.
    """
    asked = body.sampling.thinking_token_budget
    if asked is None:
        return body
    if tokens.template_variables is not None and not tokens.thinks:
        if asked != "auto" and BUDGET not in body.defaulted:
            raise InvalidRequest(
                f"The chat template of this model has no tags of thinking: leave {param} out.",
                param=param,
                code="unsupported_value",
            )
        most = None
    else:
        kept = max(int(ANSWER_SHARE * limit_tokens), LEAST_ANSWER_TOKENS)
        most = max(0, limit_tokens - kept) if asked == "auto" else asked
    return body.model_copy(update={"sampling": replace(body.sampling, thinking_token_budget=most)})
