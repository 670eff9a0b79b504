"""Options of all programs in `benchmarks/engines/`: the threads of torch, the clock, and the model."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
import torch

from benchmarks.engines.engine_workload import SHAPES, endless_model

Clock = Callable[[], float]
Command = Callable[..., Any]
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}


def _set_threads(number: int) -> None:
    if number:
        torch.set_num_threads(number)


clock_option = click.option(
    "--clock",
    type=click.Choice([*CLOCKS]),
    default="wall",
    show_default=True,
    callback=lambda *given: CLOCKS[given[-1]],
    help="cpu: the process's own seconds, for a machine that others use as well.",
)
threads_option = click.option(
    "--threads",
    default=0,
    expose_value=False,
    callback=lambda *given: _set_threads(given[-1]),
    help="CPU threads of torch; its own number if unset.",
)


def endless_model_options(command: Command) -> Command:
    """Give a command a model that never ends an answer as `loaded`, chosen by `--model`, `--size` and `--dtype`."""

    @wraps(command)
    def with_model(model: Path | None, size: str, dtype: str, **others: Any) -> Any:
        return command(loaded=endless_model(model, size, dtype), **others)

    made: Command = with_model
    for option in (
        click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True),
        click.option("--size", type=click.Choice([*SHAPES]), default="tiny", show_default=True, help="Random weights."),
        click.option("--model", type=click.Path(path_type=Path), help="Directory of a model, in place of --size."),
    ):
        made = option(made)
    return made
