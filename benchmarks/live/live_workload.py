"""The workloads of live comparisons: arrivals, and requests with known answers from which length predictors learn.

`toy` and `long_toy` have the bundled model's requests, `instructions` the demo's real ones. `tasks` draws Magnus's
eight tasks equally often from a data directory; with the served model's own answers, it draws only requests whose
answers the model ended.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.generated_answers import load_answers
from benchmarks.harness import say
from benchmarks.inputs.request_sources import (
    LIMIT,
    TOY_WORDS,
    AnsweredRequest,
    Workload,
    arrivals_of,
    read_answered,
    token_counter,
)
from benchmarks.inputs.simulated_workloads import magnus_task
from cli.demo.demo_workload import TRAINING_EXAMPLES, DemoArrival, RealRequest, spaced, training_examples
from inference.prompts.prompt_format import PromptFormat
from inference.toy.toy_applications import ToyRequest
from learning.features.length_predictor import Outcome, Prompt

Texts = tuple[str, str]  # instruction and input
Example = Mapping[str, str | int]
# The median words of the toy requests from which predictors learn; `toy` has learned from shorter ones since its first
# published runs.
EXAMPLE_WORDS: dict[Workload, float] = {"toy": 10.0, "long_toy": TOY_WORDS["long_toy"]}
EXAMPLES_A_TASK = 2500  # Magnus trains its predictor on this many requests of a task (IV-A)


@dataclass(frozen=True)
class LiveWorkload:
    """`draw` makes arrivals of (requests, rate, seed); `examples` makes what predictors learn before these arrivals."""

    draw: Callable[[int, float, int], list[DemoArrival]]
    examples: Callable[[list[DemoArrival], int], Iterable[Example]]
    tokens: Callable[[ToyRequest | RealRequest], int | None]  # the answer's tokens with its EOS; None: not known

    def true_tokens(self, arrivals: Iterable[DemoArrival]) -> dict[Texts, int]:
        """Return the known lengths of these arrivals' answers, in tokens, by instruction and input."""
        known = ((one.request, self.tokens(one.request)) for one in arrivals)
        return {(request.instruction, request.input): tokens for request, tokens in known if tokens is not None}


def toy_workload(name: Workload, prompts: PromptFormat) -> LiveWorkload:
    """Return the workload `toy` or `long_toy`; predictors learn from other requests of the same applications."""
    return LiveWorkload(
        partial(arrivals_of, name),
        lambda arrivals, seed: training_examples(TRAINING_EXAMPLES, arrivals, seed, EXAMPLE_WORDS[name]),
        lambda request: prompts.count(request.output) + 1 if isinstance(request, ToyRequest) else None,
    )


def task_workload(data: Path, model: str, answers: Path | None, most_prompt: int, most_answer: int) -> LiveWorkload:
    """Return the workload `tasks`: requests with test texts that fit both limits; predictors learn training texts."""
    known = _own_answers(answers, model, data) if answers else read_answered(data, token_counter(model))
    fitting = [one for one in known if one.application != "chat" and _fits(one, most_prompt, most_answer)]
    test: dict[str, list[RealRequest]] = defaultdict(list)
    examples: dict[str, list[Example]] = defaultdict(list)
    tokens: dict[Texts, int] = {}
    for one in fitting:
        prompt, task, length = one.outcome.prompt, magnus_task(one), one.outcome.generated_tokens + 1
        texts = {"instructions": prompt.instruction, "input": prompt.input}
        if one.is_test:
            test[task].append(RealRequest(task, prompt.instruction, prompt.input, None))
            tokens[prompt.instruction, prompt.input] = length
        elif len(examples[task]) < EXAMPLES_A_TASK:
            examples[task].append({**texts, "application": task, "output_tokens": length})
    learned = [example for of_task in examples.values() for example in of_task]
    say(f"{sum(map(len, test.values()))} requests of {len(test)} tasks, {len(learned)} examples to learn from")

    def draw(requests: int, rate: float, seed: int) -> list[DemoArrival]:
        generator = random.Random(seed)
        of_task = {task: cycle(generator.sample(those, len(those))) for task, those in sorted(test.items())}
        drawn = [next(of_task[generator.choice(list(of_task))]) for _ in range(requests)]
        return spaced(drawn, rate, generator)

    return LiveWorkload(draw, lambda *_: learned, lambda request: tokens.get((request.instruction, request.input)))


def _own_answers(answers: Path, model: str, data: Path) -> list[AnsweredRequest]:
    """Read those answers of the model that it ended by itself; each request's application counts as its task."""
    kept = load_answers(answers, model, data, 10**9, say, cached_only=True, papers_only=True)
    return [
        AnsweredRequest(
            one.application,
            f"{one.application}: {one.instruction}",
            Outcome(
                Prompt(one.application, one.instruction, one.input, one.input_tokens, one.prompt_tokens, LIMIT),
                one.generated_tokens - 1,  # without the end-of-sequence token
            ),
        )
        for one in kept
        if not one.cut
    ]


def _fits(one: AnsweredRequest, most_prompt: int, most_answer: int) -> bool:
    template_tokens = 64  # more tokens than a chat template adds
    return (
        one.outcome.prompt.prompt_tokens + template_tokens <= most_prompt
        and one.outcome.generated_tokens + 1 <= most_answer
    )


def make_workload(
    name: Workload,
    prompts: PromptFormat,
    model: str,
    data: Path | None,
    answers: Path | None,
    most_prompt: int,
    most_answer: int,
) -> LiveWorkload:
    """Return the workload of this name; raise ValueError for `tasks` without data."""
    if name in TOY_WORDS:
        return toy_workload(name, prompts)
    if name == "instructions":
        # The answers are not known in advance.
        return LiveWorkload(partial(arrivals_of, "instructions"), lambda *_: (), lambda _: None)
    if data is None:
        raise ValueError("the workload tasks draws from --data")
    return task_workload(data, model, answers, most_prompt, most_answer)
