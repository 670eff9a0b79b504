"""The bundled model without its end of sequence: its rows run until their limits."""

import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from settings import BUNDLED_MODEL

EOS_ID = 1
EMBEDDINGS = "model.embed_tokens.weight"  # tied to the output: a row of zeros gives the logit 0, below the likeliest


def make_endless_model(directory: Path) -> Path:
    """Write it; the path of the model."""
    model = directory / "endless"
    shutil.copytree(BUNDLED_MODEL, model)
    weights = load_file(model / "model.safetensors")
    weights[EMBEDDINGS][EOS_ID] = 0.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model
