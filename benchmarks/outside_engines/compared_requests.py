"""The requests on which systems are compared, and other requests with answers, from which Magnus learns before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.generated_answers import ANSWERS, Instruction, RealAnswer, choose_instructions, load_answers
from benchmarks.harness import Json, say
from cli.demo.demo_workload import DemoArrival, RealRequest, real_arrivals, real_requests
from inference.prompts.prompt_format import load_prompt_format


@dataclass(frozen=True)
class ComparedRequests:
    """Requests to measure, requests to answer before, and the lines of a log from which `magnus train` learns."""

    measured: Sequence[RealRequest]
    before: Sequence[RealRequest]
    log: Sequence[Json] = ()

    def arrivals(self, requests: int, rate: float, seed: int) -> list[DemoArrival]:
        """Draw Poisson arrivals of the measured requests, `rate` a second."""
        return real_arrivals(requests, rate, seed, self.measured)

    def at_once(self, requests: int, seed: int) -> list[DemoArrival]:
        """Draw requests to answer before the measurement, all due at once."""
        return [replace(one, at_s=0.0) for one in real_arrivals(requests, 1.0, seed, self.before)]


def demo_requests() -> ComparedRequests:
    """Return the demo's instructions without limits of their own, so that answers end where the model ends them."""
    own = [replace(request, max_output_tokens=None) for request in real_requests()]
    return ComparedRequests(own, own)


def known_requests(model: str, data: Path | None, answers: Path, learned: int) -> ComparedRequests:
    """Divide the mixed instructions: the first `learned` with known answers are learned, the others are measured.

    Raises click.UsageError if the file has fewer answers.
    """
    known = load_answers(answers, model, data, ANSWERS, say, cached_only=True)[:learned]
    if len(known) < learned:
        raise click.UsageError(f"{answers} has {len(known)} answers of {Path(model).name} to these instructions")
    return divided(choose_instructions(data, ANSWERS, load_prompt_format(model).count), known)


def divided(instructions: Sequence[Instruction], known: Sequence[RealAnswer]) -> ComparedRequests:
    """Return the instructions with known answers as requests to learn from, and the others as measured ones."""
    before = {(one.application, one.instruction, one.input) for one in known}
    return ComparedRequests(
        measured=[RealRequest(*one, None) for one in instructions if one not in before],
        before=[RealRequest(*one, None) for one in instructions if one in before],
        log=[log_line(one) for one in known],
    )


def log_line(answer: RealAnswer) -> Json:
    """Return the answer as a line of a log of chat completions; `finish_reason` says whether its limit ended it."""
    turns = [("system", answer.instruction), ("user", answer.input)]
    messages = [{"role": role, "content": content} for role, content in turns if content]
    return {
        "request": {"messages": messages, "metadata": {"application": answer.application}},
        "response": {
            "usage": {"completion_tokens": answer.generated_tokens},
            "choices": [{"finish_reason": "length" if answer.cut else "stop"}],
        },
    }
