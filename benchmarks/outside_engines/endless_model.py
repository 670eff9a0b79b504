"""The bundled model under another end of sequence, which it never says: its rows run until their limits."""

import json
import shutil
from pathlib import Path
from typing import Any

from settings import BUNDLED_MODEL

PADDING_ID, PADDING = 0, "<pad>"


def make_endless_model(directory: Path) -> Path:
    """Write it; the path of the model."""
    model = directory / "endless"
    shutil.copytree(BUNDLED_MODEL, model)
    _change(model / "config.json", eos_token_id=PADDING_ID)
    _change(model / "generation_config.json", eos_token_id=PADDING_ID)
    _change(model / "tokenizer_config.json", eos_token=PADDING)  # vLLM ends rows at the tokenizer's too
    return model


def _change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
