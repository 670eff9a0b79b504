"""A model that was copied in part is noticed by the sizes that its own header names."""

import json
from pathlib import Path

import pytest

from inference.weights_header import UnreadableWeights, read_header
from settings import BUNDLED_MODEL

WEIGHTS = (Path(BUNDLED_MODEL) / "model.safetensors").read_bytes()


def file_of(directory: Path, content: bytes) -> Path:
    file = directory / "model.safetensors"
    file.write_bytes(content)
    return file


def test_a_whole_file_names_its_tensors(tmp_path: Path):
    tensors = read_header(file_of(tmp_path, WEIGHTS))
    assert len(tensors["model.embed_tokens.weight"]["shape"]) == 2
    assert "__metadata__" not in tensors


@pytest.mark.parametrize("kept", [0, 5, 8, 100, len(WEIGHTS) // 2, len(WEIGHTS) - 1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: int):
    with pytest.raises(UnreadableWeights, match=r"cut off|no safetensors file"):
        read_header(file_of(tmp_path, WEIGHTS[:kept]))


@pytest.mark.parametrize("header", [[], {"w": 1}, {"w": {"data_offsets": []}}, {"w": {"data_offsets": ["a", "b"]}}])
def test_a_header_of_another_form_is_refused(tmp_path: Path, header: object):
    stored = json.dumps(header).encode()
    with pytest.raises(UnreadableWeights, match="no safetensors file"):
        read_header(file_of(tmp_path, len(stored).to_bytes(8, "little") + stored))
