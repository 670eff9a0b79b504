"""The bundled model without its end of sequence, and with room for longer rows: they run until their limits."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from settings import BUNDLED_MODEL

EOS_ID = 1
POSITIONS = 8192  # rotary: any number of them works, and what an endless row says is of no interest
EMBEDDINGS = "model.embed_tokens.weight"  # tied to the output: a row of zeros gives the logit 0, below the likeliest


def make_endless_model(directory: Path) -> Path:
    """Write it; the path of the model."""
    model = directory / "endless"
    shutil.copytree(BUNDLED_MODEL, model)
    weights = load_file(model / "model.safetensors")
    weights[EMBEDDINGS][EOS_ID] = 0.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
    return model
