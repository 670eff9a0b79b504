"""Makes the prompts and the submissions of /v1/messages."""

from dataclasses import replace

from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.request_tokens import thinking_variables
from protocol.chat.chat_submissions import submission_of
from protocol.limits.prompt_limits import PromptLimits
from protocol.messages.message_schemas import CreateMessage, MessageToolChoice, PromptFields, text_of
from protocol.requests.client_prompt import prompt_of_turns
from protocol.requests.options import JsonObjectFormat, stored_format
from protocol.requests.submission import FieldNames, Submission
from protocol.requests.thinking_room import BUDGET
from protocol.requests.tools import dropped_kinds, function_fields
from request_body import Effort

NO_CHOICE = MessageToolChoice(type="auto")
NAMES = FieldNames(
    "messages", "max_tokens", "output_config.format", reasoning="thinking", budget="thinking.budget_tokens"
)


def message_prompt(body: PromptFields, limits: PromptLimits) -> ModelPrompt:
    """Returns the prompt of a conversation; an answer goes on with the assistant's last message."""
    choice = body.tool_choice or NO_CHOICE
    return prompt_of_turns(
        text_of(body.system, "\n\n") or None,
        [turn for message in body.messages for turn in message.turns],
        () if choice.type == "none" else body.functions,
        continues=body.messages[-1].role == "assistant",
        reasoning=understood_effort(body.effort, limits.of(body.model)),
    )


def understood_effort(effort: Effort | None, limits: PromptLimits) -> Effort | None:
    """Returns the effort, or None if the template cannot set it: agents ask every model to think."""
    known = limits.prompt_format.template_variables
    unknown = known is not None and known.isdisjoint(thinking_variables(effort))
    return None if unknown and effort != "none" else effort


def message_submission(
    body: CreateMessage, tenant: str, limits: PromptLimits, key: str | None = None, *, background: bool = False
) -> Submission:
    """Returns the submission of a message for this tenant, with its Idempotency-Key; raises InvalidRequest."""
    choice = body.tool_choice or NO_CHOICE
    dropped = dropped_kinds(body.tools, limits.refuses_hosted_tools)
    wanted = body.output_config.format if body.output_config else None
    asked = (
        None if wanted is None else JsonObjectFormat.model_validate({"type": "json_object", "schema": wanted.schema_})
    )
    others = function_fields(body.functions, choice.stored, not choice.disable_parallel_tool_use)
    others |= {
        "format": stored_format(asked),
        "metadata": {},
        "background": background,
        "stop": body.stop_sequences or [],
        "dropped_tools": dropped,
    }
    if body.metadata and body.metadata.application:
        others["metadata"] = {"application": body.metadata.application}
    thinking = body.thinking
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        others[BUDGET] = thinking.budget_tokens
    prompt = message_prompt(body, limits)
    made = submission_of(body, tenant, limits, key, prompt, body.max_tokens, NAMES, **others)
    if BUDGET not in others:
        return made
    # agents send it to every model, as they ask every model to think
    return replace(made, body=made.body.model_copy(update={"defaulted": (*made.body.defaulted, BUDGET)}))
