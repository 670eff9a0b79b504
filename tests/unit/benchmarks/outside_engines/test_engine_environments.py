"""When an engine's environment counts as built."""

import hashlib

import pytest

from benchmarks.outside_engines.engine_environments import HERE, NEEDED_BYTES, RECORD, engine_python, is_built
from cli.output import CommandFailed


def test_an_environment_without_a_record_or_of_other_pins_is_not_built(tmp_path):
    (tmp_path / "llamacpp").mkdir()
    assert not is_built("llamacpp", tmp_path)
    (tmp_path / "llamacpp" / RECORD).write_text("of other pins")
    assert not is_built("llamacpp", tmp_path)
    with pytest.raises(CommandFailed, match="run `make engines`"):
        engine_python("llamacpp", tmp_path)


def test_an_environment_of_todays_pins_is_built(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / RECORD).write_text(hashlib.sha256((HERE / "vllm.txt").read_bytes()).hexdigest())
    assert engine_python("vllm", tmp_path) == tmp_path / "vllm" / "bin" / "python"


@pytest.mark.parametrize("engine", sorted(NEEDED_BYTES))
def test_every_package_of_an_environment_is_pinned(engine):
    lines = (HERE / f"{engine}.txt").read_text().splitlines()
    assert lines
    assert all(line.count("==") == 1 for line in lines)
