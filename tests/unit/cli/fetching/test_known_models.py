"""Which models can be fetched, and what counts as fetched."""

import json
from pathlib import Path

import pytest

from cli.fetching.known_models import KNOWN_MODELS, RECORD
from settings import FETCHABLE, read_settings

SMOLLM2 = KNOWN_MODELS["smollm2"]


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    directory = SMOLLM2.directory(tmp_path)
    (directory / "part").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "part" / "weights").write_bytes(b"1234")
    (directory / RECORD).write_text(json.dumps(SMOLLM2.record(directory)))
    return directory


def test_the_settings_know_the_names_of_the_models_that_can_be_fetched() -> None:
    assert sorted(FETCHABLE) == sorted(KNOWN_MODELS)


def test_a_whole_directory_with_its_record_counts_as_fetched(fetched: Path) -> None:
    assert SMOLLM2.is_fetched(fetched)


def test_a_directory_without_its_record_does_not(fetched: Path) -> None:
    (fetched / RECORD).unlink()
    assert not SMOLLM2.is_fetched(fetched)


def test_one_that_lacks_a_file_or_a_part_of_one_does_not(fetched: Path) -> None:
    (fetched / "part" / "weights").write_bytes(b"12")
    assert not SMOLLM2.is_fetched(fetched)


def test_another_models_directory_does_not(fetched: Path) -> None:
    assert not KNOWN_MODELS["minilm"].is_fetched(fetched)


def test_the_name_of_a_fetched_model_means_its_directory(fetched: Path, tmp_path: Path) -> None:
    assert read_settings(state_dir=tmp_path, model="smollm2").model == str(fetched)


def test_the_name_of_a_model_that_is_not_there_is_refused_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run `magnus model fetch minilm` first"):
        read_settings(state_dir=tmp_path, encoder="minilm")


def test_any_other_name_or_path_is_left_as_it_is(tmp_path: Path) -> None:
    settings = read_settings(state_dir=tmp_path, model="someone/model", encoder="sentence-transformers/LaBSE")
    assert (settings.model, settings.encoder) == ("someone/model", "sentence-transformers/LaBSE")
