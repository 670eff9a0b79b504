"""Makes the submissions of chats and completions; lines of bulk jobs use it, too."""

from typing import Any

from inference.prompts.model_prompt import ModelPrompt
from protocol.chat.chat_schemas import MOST_ANSWERS, CreateChatCompletion, CreateCompletion, WaitingFields
from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits
from protocol.requests.client_prompt import client_prompts, prompt_of_turns
from protocol.requests.options import stored_format
from protocol.requests.several_answers import several
from protocol.requests.submission import FieldNames, Submission, served_tier
from protocol.requests.tools import allowed_functions, chat_functions, function_fields, stored_choice

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions


def chat_submission(
    body: CreateChatCompletion, tenant: str, limits: PromptLimits, key: str | None = None
) -> Submission:
    """Returns the submission of a chat for this tenant, with its Idempotency-Key; raises InvalidRequest."""
    choice = stored_choice(body.tool_choice)
    tools = allowed_functions(chat_functions(body.tools), body.tool_choice)
    offered = () if choice.mode == "none" else tools
    turns, continues = [message.turn for message in body.messages], bool(body.continue_final_message)
    prompt = prompt_of_turns(
        None, turns, offered, continues=continues, reasoning=body.reasoning_effort, variables=body.chat_template_kwargs
    )
    if body.max_completion_tokens is None:
        limit_tokens, limit_name = body.max_tokens, "max_tokens"
    else:
        limit_tokens, limit_name = body.max_completion_tokens, "max_completion_tokens"
    format_name, asked_format = body.format_beside("response_format", stored_format(body.response_format))
    names = FieldNames("messages", limit_name, format_name)
    others = function_fields(tools, choice, body.parallel_tool_calls)
    others |= {"format": asked_format, "top_logprobs": body.asked_logprobs, "stop": body.stops}
    return submission_of(body, tenant, limits, key, prompt, limit_tokens, names, **others)


def completion_submissions(
    body: CreateCompletion, tenant: str, limits: PromptLimits, key: str | None = None
) -> list[Submission]:
    """Returns `n` submissions for each prompt of a completion; raises InvalidRequest."""
    limits = limits.of(body.model)
    prompts = client_prompts(body.prompt, limits)
    answers, limit_tokens = body.n or 1, body.max_tokens
    if answers * len(prompts) > MOST_ANSWERS:
        raise InvalidRequest(f"A call has at most {MOST_ANSWERS} answers, `n` for each prompt.", param="prompt")
    if limit_tokens is None:
        limit_tokens = min(DEFAULT_COMPLETION_TOKENS, limits.max_output_tokens)
    format_name, asked_format = body.format_beside("structured_outputs", None)
    submissions, names = [], FieldNames("prompt", "max_tokens", format_name)
    for prompt in prompts:
        others = {"top_logprobs": body.logprobs, "format": asked_format, "stop": body.stops}
        submission = submission_of(body, tenant, limits, key, prompt, limit_tokens, names, **others)
        submissions += several(submission, answers)
    return submissions


def submission_of(
    body: WaitingFields,
    tenant: str,
    limits: PromptLimits,
    key: str | None,
    prompt: ModelPrompt,
    limit_tokens: int | None,
    names: FieldNames,
    **others: Any,
) -> Submission:
    """Returns the submission of a body; `others` are fields of RequestBody that not all of these calls have."""
    top_k = body.magnus.top_k if body.top_k is None else body.top_k
    own = {"twins": body.magnus.twins, "landing": body.magnus.landing}
    others = {"background": False, "top_k": top_k} | own | others
    return Submission(
        tenant=tenant,
        idempotency_key=key,
        model=body.model,
        prompt=prompt,
        body=body.request_body(prompt, limits.of(body.model).sampling_defaults, **others),
        sent=body,
        limit_tokens=limit_tokens,
        priority=body.magnus.priority,
        service_tier=served_tier(body.service_tier),
        deadline_s=body.magnus.deadline_s,
        best_effort=body.magnus.best_effort,
        quote=body.magnus.quote,
        names=names,
    )
