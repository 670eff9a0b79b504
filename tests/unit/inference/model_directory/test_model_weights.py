"""Headers of weights, the number of parameters, and the number format that a CPU serves."""

import json
from pathlib import Path

import pytest

from inference.model_directory.model_files import UnreadableWeights, read_header
from inference.model_directory.model_weights import count_parameters, cpu_dtype, native_bfloat16
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


def cpu_with(tmp_path: Path, line: str) -> Path:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\n{line}\n")
    return info


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("flags : fpu avx2 avx512f avx512_bf16", "avx512_bf16"),
        ("flags : avx512_bf16 amx_bf16", "amx_bf16"),
        ("Features : fp asimd bf16", "bf16"),
        ("flags : fpu avx2 avx512f", None),
        ("", None),
    ],
)
def test_native_bfloat16_is_read_off_the_flags_of_the_cpu(tmp_path: Path, line: str, feature: str | None) -> None:
    assert native_bfloat16(cpu_with(tmp_path, line)) == feature


def test_where_the_cpu_cannot_be_asked_there_is_no_native_bfloat16(tmp_path: Path) -> None:
    assert native_bfloat16(tmp_path / "nowhere") is None


def test_only_a_large_model_on_a_cpu_with_native_bfloat16_is_loaded_in_it(tmp_path: Path) -> None:
    native = cpu_with(tmp_path, "flags : avx512_bf16")
    assert cpu_dtype(134_000_000, native)[0] == "bfloat16"
    assert cpu_dtype(700_000, native)[0] == "float32"
    assert cpu_dtype(134_000_000, tmp_path / "nowhere")[0] == "float32"


def test_parameters_are_counted_without_loading_the_model(tmp_path: Path) -> None:
    assert count_parameters(BUNDLED_MODEL) == pytest.approx(730_000, rel=0.05)
    assert count_parameters(tmp_path) is None
