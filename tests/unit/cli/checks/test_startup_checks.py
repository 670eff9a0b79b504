"""What is wrong with the models for vectors and scores is said before anything starts, with the remedy."""

from pathlib import Path

from click.testing import CliRunner

from cli.checks.startup_checks import embedding_problems
from cli.commands.run_commands import worker
from tests.unit.inference.embedding.text_directories import write_pair_model, write_text_model


def test_models_that_can_be_read_have_no_problem(tmp_path: Path) -> None:
    models = {"small": str(write_text_model(tmp_path / "small")), "pairs": str(write_pair_model(tmp_path / "pairs"))}
    assert list(embedding_problems(models, "bundled")) == []


def test_a_model_that_is_not_there_or_has_the_name_of_the_served_one_is_told_with_the_setting(tmp_path: Path) -> None:
    (gone,) = embedding_problems({"gone": str(tmp_path / "gone")}, "bundled")
    assert "there is no such directory; MAGNUS_EMBED: name sentence-transformers models" in gone
    (named,) = embedding_problems({"bundled": str(write_text_model(tmp_path / "bundled"))}, "bundled")
    assert named == "MAGNUS_EMBED: bundled is also the name of the served LM; set MAGNUS_MODEL_NAME"


def test_a_worker_of_a_model_that_is_not_there_ends_with_the_remedy(tmp_path: Path) -> None:
    addresses = {"MAGNUS_DATABASE_URL": "postgresql://localhost/x", "MAGNUS_REDIS_URL": "redis://localhost:1"}
    ended = CliRunner().invoke(worker, ["--name", "embed-1", "--embed", str(tmp_path / "gone")], env=addresses)
    assert ended.exit_code != 0
    assert "there is no such directory; MAGNUS_EMBED" in ended.output
