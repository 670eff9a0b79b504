"""/v1/chat/completions and /v1/completions, which wait; each request can be read under /v1/responses, too."""

from collections.abc import Sequence
from typing import Any

from apiflask import APIBlueprint
from flask import Response as FlaskResponse
from flask import request

from inference.model_prompt import ModelPrompt
from models.client_requests import RequestView
from models.planning.queue_position import QueuePlace
from request_body import read_body, readable_body
from webapp.app_context import current_context
from webapp.auth import current_tenant
from webapp.chat.chat_answers import completion_logprobs, finish_reason_of, usage_of
from webapp.chat.chat_objects import (
    AnsweredCall,
    AnsweredFunction,
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
)
from webapp.chat.chat_schemas import MOST_ANSWERS, CommonFields, CreateChatCompletion, CreateCompletion
from webapp.client_errors import InvalidRequest
from webapp.limits.prompt_limits import PromptLimits
from webapp.requests.client_prompt import client_prompts, prompt_of_turns
from webapp.requests.options import stored_format
from webapp.requests.several_answers import one_by_one, several, wait_for_answers
from webapp.requests.submission import FieldNames, Submission, served_tier, tier_of_answers
from webapp.requests.tools import answer_parts, function_fields, stored_choice
from webapp.responses.output_items import logprobs_of
from webapp.responses.response_objects import magnus_of
from webapp.streaming.answer_stream import event_stream, submit_and_stream_all
from webapp.streaming.chat_chunks import ChunkKind, ShownUsage, chunks
from webapp.waiting.patience import connection_of

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions

api = APIBlueprint("chat", __name__, url_prefix="/v1", tag="Completions")


@api.post("/chat/completions")
@api.input(CreateChatCompletion)
@api.output(ChatCompletion)
@api.doc(summary="Answer a chat", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def chat(json_data: CreateChatCompletion) -> ChatCompletion | FlaskResponse:
    """Waits for the answer, at most as long as the service allows, and cancels the request when that is over.

    With `stream: true` it answers at once, with chunks of the answer as they are generated.
    """
    limits, key = current_context().prompt_limits, request.headers.get("Idempotency-Key")
    submission = chat_submission(json_data, current_tenant(), limits, key)
    submissions = several(submission, json_data.n or 1)
    if submission.body.stream:
        return stream_chunks(submissions, "chat.completion.chunk", json_data, len(submissions))
    return chat_completion_of(wait_for_answers(submissions))


@api.post("/completions")
@api.input(CreateCompletion)
@api.output(Completion)
@api.doc(summary="Answer a prompt", security="ApiKey", responses=[400, 401, 403, 404, 413, 422, 429, 502, 503, 504])
def completion(json_data: CreateCompletion) -> Completion | FlaskResponse:
    """Continues one prompt or each of several, which the model reads without a chat template; is else like a chat."""
    limits, key = current_context().prompt_limits, request.headers.get("Idempotency-Key")
    submissions, answers = completion_submissions(json_data, current_tenant(), limits, key), json_data.n or 1
    if submissions[0].body.stream:
        return stream_chunks(submissions, "text_completion", json_data, answers)
    return completion_of(wait_for_answers(submissions), answers)


def chat_submission(
    body: CreateChatCompletion, tenant: str, limits: PromptLimits, key: str | None = None
) -> Submission:
    """Returns the submission of a chat for this tenant, with its Idempotency-Key; raises InvalidRequest."""
    choice = stored_choice(body.tool_choice)
    tools = tuple(tool.function.stored for tool in body.tools or ())
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
    others |= {"format": asked_format, "top_logprobs": body.asked_logprobs}
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
        others = {"top_logprobs": body.logprobs, "format": asked_format}
        submission = submission_of(body, tenant, limits, key, prompt, limit_tokens, names, **others)
        submissions += several(submission, answers)
    return submissions


def chat_completion_of(views: Sequence[RequestView]) -> ChatCompletion:
    """Returns the answers to a chat, one choice for each."""
    choices = [chat_choice(number, view) for number, view in enumerate(one_by_one(views))]
    return ChatCompletion(choices=choices, **common_fields(views, "chatcmpl-", answers_a_prompt=len(views)))


def chat_choice(index: int, view: RequestView) -> ChatChoice:
    """Returns an answer of a chat with its text and its calls."""
    parts = answer_parts(view)
    calls = [
        AnsweredCall(id=call_id, function=AnsweredFunction(name=call.name, arguments=call.arguments))
        for call_id, call in parts.calls
    ]
    return ChatChoice(
        index=index,
        message=AssistantMessage(
            content=parts.text or (None if calls or parts.reasoning else ""),
            reasoning_content=parts.reasoning or None,
            tool_calls=calls or None,
        ),
        finish_reason="tool_calls" if calls else finish_reason_of(view),
        logprobs=None if view.logprobs is None else ChatLogprobs(content=logprobs_of(view)),
    )


def completion_of(views: Sequence[RequestView], answers_a_prompt: int = 1) -> Completion:
    """Returns the answers to the prompts of a completion, those of the first prompt first."""
    echo = read_body(views[0].request.body).echo
    choices = [
        CompletionChoice(
            index=number,
            text=(view.request.input if echo else "") + (view.request.output_text or ""),
            finish_reason=finish_reason_of(view),
            logprobs=completion_logprobs(view.logprobs, begins_a_prompt=echo),
        )
        for number, view in enumerate(one_by_one(views))
    ]
    return Completion(choices=choices, **common_fields(views, "cmpl-", answers_a_prompt))


def common_fields(views: Sequence[RequestView], prefix: str, answers_a_prompt: int) -> dict[str, Any]:
    """Returns the fields of CommonAnswer without its choices; `prefix` begins the answer's id."""
    first = views[0].request
    return {
        "id": first.id.replace("resp_", prefix, 1),
        "created": int(first.arrived_at.timestamp()),
        "model": first.model,
        "service_tier": tier_of_answers(views),
        "usage": usage_of(views, answers_a_prompt=answers_a_prompt),
        "magnus": magnus_of(views[0], QueuePlace(), readable_body(first.body)),
    }


def submission_of(
    body: CommonFields,
    tenant: str,
    limits: PromptLimits,
    key: str | None,
    prompt: ModelPrompt,
    limit_tokens: int | None,
    names: FieldNames,
    **others: Any,
) -> Submission:
    """Returns the submission of either body; `others` are fields of RequestBody that only one of the calls has."""
    top_k = body.magnus.top_k if body.top_k is None else body.top_k
    others |= {"background": False, "top_k": top_k, "stop": body.stops}
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
        names=names,
    )


def stream_chunks(
    submissions: Sequence[Submission], kind: ChunkKind, body: CommonFields, answers_a_prompt: int
) -> FlaskResponse:
    """Returns the answers as server-sent events."""
    count = current_context().prompt_limits.of(body.model).prompt_format.count if body.counts_usage else None
    shown = ShownUsage(answers_a_prompt, body.includes_usage, count)
    streams = submit_and_stream_all(current_context(), submissions, connection_of(request))
    return event_stream(streams, lambda: chunks(streams, kind, shown))
