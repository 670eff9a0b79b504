"""The engines' own records of their steps as the windows that costs are learned from."""

from dataclasses import fields

from inference.local.cost_counters import StepSums
from inference.remote.stream_figures import StepSample
from learning.step_costs import StepWindow

COUNTED = tuple(field.name for field in fields(StepSums) if field.name != "began_at")


def window_of_sums(sums: StepSums, at: float) -> StepWindow:
    """A window of our own engine's steps."""
    return StepWindow(at=at, **{name: getattr(sums, name) for name in COUNTED})


def window_of_sample(sample: StepSample, at: float) -> StepWindow:
    """A server's window: each row reads its own tokens, and a prefill beside the iterations has no price of its own."""
    row_steps = sample.steps * sample.rows
    return StepWindow(
        sample.seconds,
        at,
        prefilled_tokens=sample.prefilled,
        row_reads=row_steps * sample.cached,
        row_steps=row_steps,
        steps=sample.steps,
    )
