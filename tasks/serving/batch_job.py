"""A leased batch in a worker process, converted from the database's rows into sequences for the engine."""

from dataclasses import dataclass, field
from threading import Event

from jinja2 import TemplateError

from inference.prompt_format import PromptFormat, Turn
from inference.sequences import Sampling, Sequence
from models.leases import Lease, TakenBatch, TakenRequest
from models.request_body import RequestBody, read_body


@dataclass(frozen=True, slots=True)
class Unservable:
    """A request that this model can never answer; its client reads `code` and `message`."""

    request_id: str
    code: str
    message: str


@dataclass(eq=False, slots=True)
class BatchJob:
    """One batch for the engine's thread, which alone changes it from `submit` until `closed` is set."""

    lease: Lease
    joins: bool
    iteration_limit: int | None
    preempts: tuple[str, ...]
    sequences: tuple[Sequence, ...]
    unservable: tuple[Unservable, ...] = ()
    streamed: frozenset[str] = frozenset()  # requests whose answers somebody reads while they are generated
    closed: Event = field(default_factory=Event)  # set once the batch's results are written or its lease is lost


def prepare(batch: TakenBatch, prompt_format: PromptFormat, max_positions: int) -> BatchJob:
    """Encode a batch's prompts.

    A prompt is unservable if the model's chat template refuses it or if it leaves no position for an answer.
    """
    sequences: list[Sequence] = []
    unservable: list[Unservable] = []
    streamed: set[str] = set()
    for request in batch.prompts:
        try:
            body = read_body(request.body)
            sequence = _sequence(request, body, prompt_format)
        except TemplateError as error:
            message = f"The model's chat template refuses it: {error}."
            unservable.append(Unservable(request.id, "invalid_prompt", message))
        except ValueError as error:
            unservable.append(Unservable(request.id, "invalid_prompt", str(error)))
        else:
            if sequence.length < max_positions:
                sequences.append(sequence)
                if body.stream:
                    streamed.add(request.id)
                continue
            message = f"The prompt has {len(sequence.prompt_ids)} tokens, the model {max_positions} positions."
            unservable.append(Unservable(request.id, "context_length_exceeded", message))
    return BatchJob(
        batch.lease,
        batch.joins,
        batch.iteration_limit,
        batch.preempts,
        tuple(sequences),
        tuple(unservable),
        frozenset(streamed),
    )


def _sequence(request: TakenRequest, body: RequestBody, prompt_format: PromptFormat) -> Sequence:
    messages = tuple((turn.role, turn.content) for turn in body.messages)
    return Sequence(
        id=request.id,
        prompt_ids=tuple(prompt_format.encode_request(request.instructions, request.input, messages)),
        limit=request.limit_tokens,
        generated_ids=request.generated_ids,
        sampling=Sampling(**body.sampling.model_dump(exclude_none=True)),
        stop=body.stop,
        turns=messages or _turns(request),
        priority=request.priority,
    )


def _turns(request: TakenRequest) -> tuple[Turn, ...]:
    """Instructions and input as a conversation, for a server that takes no token ids."""
    asked = ("user", request.input)
    return (("system", request.instructions), asked) if request.instructions else (asked,)
