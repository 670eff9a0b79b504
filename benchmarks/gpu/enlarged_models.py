"""The bundled model at a size that a GPU is for, made once in the work folder, and its prompts."""

from pathlib import Path
from tempfile import mkdtemp

from benchmarks.engines.guessed_copies import encoded_prompts
from benchmarks.gpu.phase_plan import Terms
from benchmarks.inputs.changed_models import ModelSize, enlarged_model
from inference.prompts.prompt_format import load_prompt_format
from settings import BUNDLED_MODEL

SMALL: ModelSize = "8x"


def made_model(size: ModelSize, terms: Terms) -> Path:
    """Return the directory of the bundled model at this size in bfloat16; --small has one size."""
    size = SMALL if terms.small else size
    directory = terms.work / f"bundled-{size}"
    if not directory.exists():  # a directory that was not finished has another name
        enlarged_model(size, Path(mkdtemp(dir=terms.work)), terms.device, "bfloat16").rename(directory)
    return directory


def toy_prompts(count: int) -> list[tuple[int, ...]]:
    """Return this many prompts of the bundled model, of each application in turn."""
    of_each = encoded_prompts(None, load_prompt_format(str(BUNDLED_MODEL)), count)
    return [prompt for turn in zip(*of_each.values(), strict=False) for prompt in turn][:count]
