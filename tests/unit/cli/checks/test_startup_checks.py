"""What is wrong with the models for vectors and scores is said before anything starts, with the remedy."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.checks.startup_checks import embedding_problems, further_model_problems
from cli.commands.run_commands import chosen_lms, worker
from settings import BUNDLED_MODEL, Settings
from tests.unit.inference.embedding.text_directories import write_pair_model, write_text_model


def test_models_that_can_be_read_have_no_problem(tmp_path: Path) -> None:
    models = {"small": str(write_text_model(tmp_path / "small")), "pairs": str(write_pair_model(tmp_path / "pairs"))}
    assert list(embedding_problems(models, ["bundled"])) == []


def test_a_model_that_is_not_there_or_has_the_name_of_the_served_one_is_told_with_the_setting(tmp_path: Path) -> None:
    (gone,) = embedding_problems({"gone": str(tmp_path / "gone")}, ["bundled"])
    assert "there is no such directory; MAGNUS_EMBED: name sentence-transformers models" in gone
    (named,) = embedding_problems({"bundled": str(write_text_model(tmp_path / "bundled"))}, ["bundled"])
    assert named == "MAGNUS_EMBED: bundled is also the name of a served LM; set MAGNUS_MODEL_NAME"


def test_a_worker_of_a_model_that_is_not_there_ends_with_the_remedy(tmp_path: Path) -> None:
    addresses = {"MAGNUS_DATABASE_URL": "postgresql://localhost/x", "MAGNUS_REDIS_URL": "redis://localhost:1"}
    ended = CliRunner().invoke(worker, ["--name", "embed-1", "--embed", str(tmp_path / "gone")], env=addresses)
    assert ended.exit_code != 0
    assert "there is no such directory; MAGNUS_EMBED" in ended.output


def test_further_models_need_names_of_their_own_and_files(tmp_path: Path) -> None:
    (tmp_path / "twin").symlink_to(BUNDLED_MODEL)
    assert list(further_model_problems(Settings(models=str(tmp_path / "twin")))) == []
    (same,) = further_model_problems(Settings(models=str(BUNDLED_MODEL)))
    assert same == "MAGNUS_MODELS: bundled is the name of several models; rename a directory, or set MAGNUS_MODEL_NAME"
    (gone,) = further_model_problems(Settings(models=str(tmp_path / "gone")))
    assert "MAGNUS_MODELS" in gone


@pytest.mark.parametrize(("named", "chosen"), [("twin", ["twin"]), ("bundled, twin", ["bundled", "twin"])])
def test_a_worker_loads_the_models_that_its_command_names(tmp_path: Path, named: str, chosen: list[str]) -> None:
    settings = Settings(models=str(tmp_path / "twin"))
    assert list(chosen_lms(settings, None)) == ["bundled", "twin"]
    assert list(chosen_lms(settings, named)) == chosen
    assert chosen_lms(settings, str(tmp_path / "twin")) == {"twin": str(tmp_path / "twin")}
    with pytest.raises(click.BadParameter, match="large: name some of bundled, twin"):
        chosen_lms(settings, "twin, large")
