"""Which number format a CPU worker loads a model in."""

from pathlib import Path

import pytest

from inference.local.cpu.cpu_dtype import cpu_dtype, native_bfloat16, parameters_of
from settings import BUNDLED_MODEL


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
    assert parameters_of(BUNDLED_MODEL) == pytest.approx(730_000, rel=0.05)
    assert parameters_of(tmp_path) is None
