"""Checks the files of a model before it is loaded, and names in one line what is wrong. Imports no torch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inference.engine_errors import UnsupportedModel
from inference.model_directory.model_files import UnreadableWeights, read_header, read_json
from inference.model_directory.model_weights import INDEX, WEIGHTS, weight_files

# The package with which transformers loads the weights of a quantisation. Other methods need none, or transformers
# refuses them with its own message.
QUANTISATION_PACKAGES = {
    "bitsandbytes": "bitsandbytes",
    "compressed-tensors": "compressed_tensors",
    "awq": "gptqmodel",
    "gptq": "gptqmodel",
    "torchao": "torchao",
}

INTEGERS = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")  # these are weights only with a scale
TOKEN_IDS = ("eos_token_id", "pad_token_id", "suppress_tokens")  # entries of configurations that loading reads
ENCODERS = ("ForMaskedLM", "ForSequenceClassification")  # endings of the classes of models that generate nothing
PLACER = "accelerate"  # transformers needs this package to place quantised weights of any method on their device


def check_model(model: str) -> None:
    """Raises UnsupportedModel or UnreadableModel if a model directory cannot be loaded according to its files.

    The weights of a hub id are not looked at, because that would fetch them.
    """
    if read_json(model, "adapter_config.json"):
        raise UnsupportedModel(
            model, "it is an adapter (adapter_config.json): merge it into its base model with peft's merge_and_unload()"
        )
    config = read_json(model, "config.json")
    if _is_encoder(model, config):
        raise UnsupportedModel(model, "it gives vectors or scores of texts, and no answers: serve it with MAGNUS_EMBED")
    if Path(model).is_dir():
        _check_weights(Path(model), quantised=quantisation(config)[0] is not None)
    if not config:
        raise UnsupportedModel(model, "it has no config.json")
    if not isinstance(config.get("model_type"), str):
        raise UnsupportedModel(model, "its config.json names no model_type")
    _check_token_ids(model, "config.json", config)
    _check_token_ids(model, "generation_config.json", read_json(model, "generation_config.json"))
    method, package = quantisation(config)
    needed = () if method is None else (package, PLACER)
    if missing := [name.replace("_", "-") for name in needed if name is not None and find_spec(name) is None]:
        raise UnsupportedModel(model, f"its weights are quantised by {method}: pip install {' '.join(missing)}")


def _is_encoder(model: str, config: dict[str, Any]) -> bool:
    """Returns whether a model is one of sentence-transformers, or has only heads that generate nothing."""
    architectures = [*map(str, config.get("architectures") or ())]
    headed = bool(architectures) and all(one.endswith(ENCODERS) for one in architectures)
    return headed or (Path(model) / "modules.json").is_file()


def _check_token_ids(model: str, file: str, config: dict[str, Any]) -> None:
    for name in TOKEN_IDS:
        stated = config.get(name)
        ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
        if not all(type(each) is int and each < 2**31 for each in ids):
            raise UnsupportedModel(model, f"its {file} names {stated!r} as {name}, where token ids belong")


def quantisation(config: dict[str, Any]) -> tuple[str | None, str | None]:
    """Returns the method by which a model's weights are quantised, and the package that reads them, or None."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, dict):
        return None, None
    by_bits = "bitsandbytes" if stated.get("load_in_4bit") or stated.get("load_in_8bit") else "unknown"
    method = str(stated.get("quant_method") or by_bits)
    return method, QUANTISATION_PACKAGES.get(method)


def _instead_of_weights(directory: Path) -> str:
    """Returns what a directory has instead of weights that can be read, and what to do."""
    shards = sorted(each.name for each in directory.glob("*.safetensors") if each.stat().st_size)
    if shards and not (directory / INDEX).is_file():
        return f"it has {shards[0]}, and neither {WEIGHTS} nor {INDEX}, which names the shards: fetch that file, too"
    why = "it has no weights (*.safetensors)"
    if files := sorted(each.name for each in directory.glob("*.gguf")):
        return f"{why}, but {files[0]}: name this file as the model"
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        return f"{why}, only pickled ones, which may run code: save it again with transformers' save_pretrained()"
    return why


def _check_weights(directory: Path, quantised: bool) -> None:
    """Raises UnsupportedModel for weights that are missing, cut off, twice there, pickled, or integers."""
    model = str(directory)
    files, named = weight_files(directory), read_json(model, "config.json").get("transformers_weights")
    if named is not None and not (directory / str(named)).is_file():
        raise UnsupportedModel(model, f"its {named} is missing, which config.json names as transformers_weights")
    if not any(file.is_file() and file.stat().st_size for file in files):
        raise UnsupportedModel(model, _instead_of_weights(directory))
    place: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise UnsupportedModel(model, f"its {file.name} is missing, which {INDEX} names")
        try:
            tensors = read_header(file)
        except UnreadableWeights as error:
            raise UnsupportedModel(model, str(error)) from error
        for name, tensor in tensors.items():
            if place.setdefault(name, file.name) != file.name:
                raise UnsupportedModel(model, f"its {place[name]} and {file.name} both have {name}")
            if not quantised and name.endswith(".weight") and tensor.get("dtype") in INTEGERS:
                why = f"{name} is stored as {tensor['dtype']}, and its config.json names no quantisation"
                raise UnsupportedModel(model, why)
