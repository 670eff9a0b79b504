"""A taken batch on its way through a worker process: from the database's rows to the engine's sequences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event as Flag

from jinja2 import TemplateError

from inference.prompt_format import PromptFormat
from inference.sequences import Sampling
from inference.sequences import Sequence as Prompted
from models.leases import Lease, TakenBatch, TakenRequest


@dataclass(frozen=True, slots=True)
class Unservable:
    """A request that the model can never answer."""

    request_id: str
    code: str
    message: str


@dataclass(eq=False, slots=True)
class BatchJob:
    """What the engine's thread gets, and alone changes until it is over."""

    lease: Lease
    joins: bool
    iteration_limit: int | None
    preempts: tuple[str, ...]
    sequences: tuple[Prompted, ...]
    unservable: tuple[Unservable, ...] = ()
    first_step: int | None = None  # the engine's count of steps when it began
    over: Flag = field(default_factory=Flag)  # written, or lost


def prepare(batch: TakenBatch, prompt_format: PromptFormat, max_positions: int) -> BatchJob:
    """Encode a batch's prompts; those that the model refuses or has no position left to answer are set apart."""
    sequences: list[Prompted] = []
    unservable: list[Unservable] = []
    for prompt in batch.prompts:
        try:
            sequence = _sequence(prompt, prompt_format)
        except TemplateError as error:
            message = f"The model's chat template refuses it: {error}."
            unservable.append(Unservable(prompt.id, "invalid_prompt", message))
        except ValueError as error:
            unservable.append(Unservable(prompt.id, "invalid_prompt", str(error)))
        else:
            if sequence.length < max_positions:
                sequences.append(sequence)
                continue
            message = f"The prompt has {len(sequence.prompt_ids)} tokens, the model {max_positions} positions."
            unservable.append(Unservable(prompt.id, "context_length_exceeded", message))
    return BatchJob(
        batch.lease, batch.joins, batch.iteration_limit, batch.preempts, tuple(sequences), tuple(unservable)
    )


def _sequence(prompt: TakenRequest, prompt_format: PromptFormat) -> Prompted:
    asked = prompt.body.get("sampling") or {}
    return Prompted(
        id=prompt.id,
        prompt_ids=tuple(_encode(prompt, prompt_format)),
        limit=prompt.limit_tokens,
        generated_ids=prompt.generated_ids,
        sampling=Sampling(**{name: value for name, value in asked.items() if value is not None}),
        stop=tuple(prompt.body.get("stop") or ()),
    )


def _encode(prompt: TakenRequest, prompt_format: PromptFormat) -> Sequence[int]:
    turns = [(turn["role"], turn["content"]) for turn in prompt.body.get("messages") or ()]
    return prompt_format.encode_request(prompt.instructions, prompt.input, turns)
