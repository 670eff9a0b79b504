"""A served GGUF file is converted once, into a directory beside it that says of which file it is."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cli.fetching.gguf_directories import convert_once, record
from cli.output import WrongSetting
from settings import Settings

# Stands in for `magnus model convert`: gets the file as $1 and the directory as $2, and counts its calls.
MAKES = ("sh", "-ec", 'mkdir -p "$2"; echo x >> "$1.calls"; cp "$0" "$2/magnus-model.json"')
FAILS = ("sh", "-c", 'echo "magnus: its tensors are of an unknown type" >&2; exit 2', "sh")


def written(path: Path, content: bytes = b"GGUF weights") -> Path:
    path.write_bytes(content)
    return path


def makes_of(file: Path) -> tuple[str, ...]:
    kept = file.parent / "record"
    kept.mkdir(exist_ok=True)
    record(file, kept)
    return (*MAKES, str(kept / "magnus-model.json"))


def test_a_file_is_served_from_the_directory_of_its_name(tmp_path: Path) -> None:
    file = written(tmp_path / "Some-1.5B.Q4_1.gguf")
    directory = Settings(model=str(file)).model
    assert directory == str(tmp_path / "magnus-converted" / "Some-1.5B.Q4_1")
    convert_once(directory, makes_of(file))
    file.unlink()
    assert Settings(model=str(file)).model == directory  # what was converted is served without its file


def test_a_file_is_converted_once(tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf")
    for _ in range(2):
        convert_once(Settings(model=str(file)).model, makes_of(file))
    assert (tmp_path / "a.gguf.calls").read_text() == "x\n"


@pytest.mark.parametrize("later", [b"GGUF weighty", b"GGUF more weights"])
def test_the_directory_of_another_file_is_refused_and_kept(tmp_path: Path, later: bytes) -> None:
    file = written(tmp_path / "a.gguf")
    convert_once(Settings(model=str(file)).model, makes_of(file))
    written(file, later)
    with pytest.raises(WrongSetting, match=r"a was made of another a.gguf: move it away"):
        convert_once(Settings(model=str(file)).model, MAKES)
    assert (tmp_path / "magnus-converted" / "a").is_dir()


def test_a_file_that_cannot_be_converted_is_refused_in_one_line(tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf")
    with pytest.raises(WrongSetting) as refused:
        convert_once(Settings(model=str(file)).model, FAILS)
    assert refused.value.message == f"MAGNUS_MODEL: {file} cannot be converted: its tensors are of an unknown type"
    assert refused.value.exit_code == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"there is no file .*a\.gguf"):
        Settings(model=str(tmp_path / "a.gguf"))
