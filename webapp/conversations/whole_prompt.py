"""The prompt of a response: what the response before it had, what is new, and with `truncation: auto` what fits."""

from collections.abc import Callable, Sequence

from inference.model_prompt import ModelPrompt
from models.tables import RequestStatus
from request_body import StoredTool, StoredTurn, UnreadableBody, read_body
from webapp.app_context import AppContext
from webapp.client_errors import InvalidRequest, NotFound
from webapp.client_prompt import opening_turns, prompt_of_turns
from webapp.conversations.turns import answered_turn, stored_turns
from webapp.limits.prompt_limits import TOO_LONG, PromptLimits
from webapp.submission import find_request

NO_PREVIOUS = "previous_response_not_found"  # OpenAI's code
ANSWERED = (RequestStatus.completed, RequestStatus.incomplete)


def earlier_turns(context: AppContext, tenant: str, id: str) -> list[StoredTurn]:
    """The input and the answer of an earlier response, without its instructions; raises InvalidRequest."""
    try:
        view = find_request(context, tenant, id)
        body = read_body(view.request.body)
    except (NotFound, UnreadableBody) as error:
        raise InvalidRequest(
            f"Previous response with id '{id[:80]}' not found.",
            param="previous_response_id",
            code=NO_PREVIOUS,
        ) from error
    if view.request.status not in ANSWERED or not view.request.input:
        why = "is not stored" if not body.store else f"has no answer, it is {view.request.status.value}"
        raise InvalidRequest(
            f"Response '{id}' {why}.", param="previous_response_id", code="previous_response_not_found"
        )
    return [*stored_turns(view, body), answered_turn(view, body)]


def prompt_of(instructions: str | None, turns: Sequence[StoredTurn], tools: Sequence[StoredTool]) -> ModelPrompt:
    """The prompt of these turns; a single text of the user's stays as it is."""
    if len(turns) == 1 and turns[0].role == "user" and not tools:
        return ModelPrompt(instructions or "", turns[0].content)
    return prompt_of_turns(instructions, turns, tools)


def fitting(
    limits: PromptLimits, turns: Sequence[StoredTurn], prompt_of: Callable[[Sequence[StoredTurn]], ModelPrompt]
) -> list[StoredTurn]:
    """The turns without so many of the oldest that the prompt fits; opening system messages and the last turn stay.

    If nothing fits it returns what is left then, which is refused as any prompt that is too long.
    """
    opening = opening_turns(turns)
    kept, later = list(turns[:opening]), list(turns[opening:])

    def without(oldest: int) -> list[StoredTurn]:
        rest = later[oldest:]
        while len(rest) > 1 and rest[0].role == "tool":  # its call is cut off
            rest = rest[1:]
        return kept + rest

    def fits(oldest: int) -> bool:
        try:
            limits.count_tokens(prompt_of(without(oldest)), param="input")
        except InvalidRequest as error:
            if error.code == TOO_LONG:
                return False
            raise
        return True

    low, high = 0, max(0, len(later) - 1)
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return without(low)
