"""A leased batch in a worker process, converted from the database's rows into sequences for the engine."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Event

from jinja2 import TemplateError

from inference.engine_errors import TooExpensive
from inference.engine_requests import DecodingRequest, EngineRequest, JsonFormat, PoolingRequest
from inference.prompts.model_prompt import ModelPrompt
from inference.prompts.request_tokens import RequestTokens, Turn
from inference.tool_calls import required_format
from models.leasing.batch_results import BatchBegan
from models.leasing.leases import Lease, TakenBatch, TakenRequest
from request_body import RequestBody, read_body
from scheduling.request import lacking
from tasks.serving.results.answers import unpacked
from tasks.serving.results.engine_events import EngineEvent, RowFailed

# Compiles the format of a tenant's request before its row joins; returns why no answer can be held to it, or None.
PrepareFormat = Callable[[JsonFormat, str], str | None]


def take_any_format(format: JsonFormat, tenant: str) -> str | None:
    """Returns None, for engines that compile formats themselves or let their servers do so."""
    return None


@dataclass(frozen=True, slots=True)
class Unservable:
    """A request that this model can never answer; its client reads `code` and `message`."""

    request_id: str
    code: str
    message: str


@dataclass(eq=False, slots=True)
class BatchJob:
    """A batch for the engine's thread, which alone changes the job from `submit` until `closed` is set."""

    lease: Lease
    joins: bool
    iteration_limit: int | None
    preempts: tuple[str, ...]
    sequences: tuple[EngineRequest, ...]
    unservable: tuple[Unservable, ...] = ()
    streamed: frozenset[str] = frozenset()  # requests whose answers are read while they are generated
    most_rows: int | None = None  # it joins once the running rows and its own are together at most this many
    waits_since: float | None = None  # the instant from which it has been the next one and lacked memory
    closed: Event = field(default_factory=Event)  # set once the batch's results are written or its lease is lost

    def began(self, at: float) -> list[EngineEvent]:
        """Returns the events to record when an engine begins the job: its start, and each unservable request."""
        failed = (RowFailed(self.lease, one.request_id, one.code, one.message, at) for one in self.unservable)
        return [BatchBegan(self.lease, at), *failed]


def prepare(
    batch: TakenBatch,
    prompt_format: RequestTokens,
    max_positions: int,
    lacks: Collection[str] = (),
    salt_key: str = "",
    prepare_format: PrepareFormat = take_any_format,
) -> BatchJob:
    """Encodes a batch's prompts and compiles its formats, so that the engine's thread need not wait for either.

    A request is unservable if the model's chat template refuses its prompt, if the prompt leaves no position for an
    answer, if the request needs an ability that the engine `lacks`, or if no answer can be held to its format.
    """
    sequences: list[EngineRequest] = []
    unservable: list[Unservable] = []
    streamed: set[str] = set()
    for request in batch.prompts:
        lacked = sorted(lacking(request.needs, lacks))
        if lacked:
            message = f"No engine that serves this model at present can do {' and '.join(lacked)}."
            unservable.append(Unservable(request.id, "unsupported_value", message))
            continue
        try:
            body = read_body(request.body)
            sequence = _sequence(request, body, prompt_format, salt_key)
        except TemplateError as error:
            message = f"The model's chat template refuses it: {error}."
            unservable.append(Unservable(request.id, "invalid_prompt", message))
        except (ValueError, TooExpensive) as error:
            unservable.append(Unservable(request.id, "invalid_prompt", str(error)))
        else:
            if sequence.length >= max_positions:
                message = f"The prompt has {len(sequence.prompt_ids)} tokens, the model {max_positions} positions."
                unservable.append(Unservable(request.id, "context_length_exceeded", message))
                continue
            problem = None if sequence.format is None else prepare_format(sequence.format, request.tenant)
            if problem is not None:
                message = f"No answer can be held to its schema: {problem}."
                unservable.append(Unservable(request.id, "invalid_json_schema", message))
                continue
            sequences.append(sequence)
            if body.stream:
                streamed.add(request.id)
    return BatchJob(
        batch.lease,
        batch.joins,
        batch.iteration_limit,
        batch.preempts,
        tuple(sequences),
        tuple(unservable),
        frozenset(streamed),
        batch.most_rows,
    )


def cache_salt(tenant: str, key: str) -> str:
    """Returns the cache salt that keeps a server from sharing cached prompts between tenants; it hides the tenant."""
    return blake2b(tenant.encode(), key=key.encode()[:64], digest_size=16).hexdigest()


def _sequence(request: TakenRequest, body: RequestBody, prompt_format: RequestTokens, salt_key: str) -> EngineRequest:
    if body.pooling is not None:
        return PoolingRequest(request.id, tuple(json.loads(request.input)), body.pooling, request.tier)
    held_to = required_format(body)
    # The format alone ends an answer: a stop string or token in the middle would cut the answer off.
    stop, sampling = body.stop, body.sampling
    if held_to is not None:
        stop, sampling = (), replace(sampling, stop_token_ids=())
    prompt = ModelPrompt(request.instructions, request.input, body)
    prompt_ids = tuple(prompt.encode(prompt_format, caller=request.tenant))
    # the answer to a raw prompt is shown as it is, but its thinking is counted where it has a budget
    counted = body.raw and sampling.thinking_token_budget is not None
    return DecodingRequest(
        id=request.id,
        prompt_ids=prompt_ids,
        limit=request.limit_tokens,
        generated_ids=request.generated_ids,
        sampling=sampling,
        stop=stop,
        turns=() if body.raw or body.uses_tools else prompt.turns or _turns(request),
        tier=request.tier,
        priority=request.priority,
        format=held_to,
        top_logprobs=body.top_logprobs,
        # log probabilities of the tokens that the request keeps
        logprobs=unpacked(request.logprobs or ())[: len(request.generated_ids)],
        cache_salt=cache_salt(request.tenant, salt_key),
        prompt_logprobs="prompt_logprobs" in body.needs,
        continues=body.raw or body.continues,
        answer_form=prompt_format.answer_form(prompt_ids) if counted else body.answer_form,
        predicted=request.predicted_tokens,
        predicted_upper=request.predicted_upper_tokens,
        adapter=request.adapter,
    )


def _turns(request: TakenRequest) -> tuple[Turn, ...]:
    """Returns instructions and input as a conversation, for servers that take no token ids."""
    asked = ("user", request.input)
    return (("system", request.instructions), asked) if request.instructions else (asked,)
