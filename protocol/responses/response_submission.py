"""Makes the submission of a response; lines of bulk jobs use it, too."""

from collections.abc import Callable
from functools import partial

from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.client_prompt import opening_turns, prompt_of_turns
from protocol.requests.options import stored_format
from protocol.requests.submission import FieldNames, Submission, served_tier
from protocol.requests.thinking_room import BUDGET
from protocol.requests.tools import allowed_functions, dropped_kinds, function_fields, functions_of, stored_choice
from protocol.responses.conversation import ReferencedItems, fitting, refuse_earlier, refuse_references, turns_of
from protocol.responses.response_schemas import CreateResponse
from request_body import StoredTurn


def response_submission(
    body: CreateResponse,
    tenant: str,
    limits: PromptLimits,
    key: str | None = None,
    earlier: Callable[[str], list[StoredTurn]] = refuse_earlier,
    referenced: ReferencedItems = refuse_references,
) -> Submission:
    """Returns a body's submission; raises InvalidRequest.

    `earlier` returns the turns of the response that this one continues, `referenced` stored items by their ids.
    """
    if body.store is False and body.background:
        raise InvalidRequest("What is not stored cannot be polled: leave out background or store.", param="store")
    limits, choice = limits.of(body.model), stored_choice(body.tool_choice)
    tools = allowed_functions(functions_of(body.tools), body.tool_choice)
    dropped = dropped_kinds(body.tools, limits.refuses_hosted_tools)
    offered = () if choice.mode == "none" else tools
    reasoning = body.reasoning.effort if body.reasoning else None
    budget = body.reasoning.max_tokens if body.reasoning else None
    prompt_of = partial(
        prompt_of_turns, body.instructions, tools=offered, reasoning=reasoning, variables=body.chat_template_kwargs
    )
    turns = turns_of(body.input, referenced)
    if body.previous_response_id is not None:
        turns = [*earlier(body.previous_response_id), *turns]
    if body.truncation == "auto":
        turns = fitting(limits, turns, prompt_of, tenant)
    prompt = prompt_of(turns)
    asked = body.request_body(
        prompt,
        limits.sampling_defaults,
        **function_fields(tools, choice, body.parallel_tool_calls),
        background=bool(body.background),
        format=stored_format(body.text.format) if body.text else None,
        dropped_tools=dropped or None,
        # the prompt's instructions also have the input's system messages, so the client's own are stored apart
        instructions=body.instructions or "" if opening_turns(turns) else None,
        twins=body.magnus.twins,
        landing=body.magnus.landing,
        seed=body.magnus.seed,
        stop=body.magnus.stop,
        top_k=body.magnus.top_k if body.top_k is None else body.top_k,
        top_logprobs=body.asked_logprobs,
        thinking_token_budget=body.thinking_token_budget if budget is None else budget,
    )
    return Submission(
        tenant=tenant,
        idempotency_key=key,
        model=body.model,
        prompt=prompt,
        body=asked,
        sent=body,
        limit_tokens=body.max_output_tokens,
        priority=body.magnus.priority,
        service_tier=served_tier(body.service_tier),
        deadline_s=body.magnus.deadline_s,
        best_effort=body.magnus.best_effort,
        quote=body.magnus.quote,
        names=FieldNames(
            format="text.format",
            reasoning="reasoning.effort",
            logprobs="include" if body.include else "top_logprobs",
            budget=BUDGET if budget is None else "reasoning.max_tokens",
        ),
    )
