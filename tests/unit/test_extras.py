"""What is missing in a base install is said in one line with the extra's name."""

import pytest
from click.testing import CliRunner

import extras
from cli.checks.startup_checks import missing_extras
from cli.main import commands
from extras import BRINGS, ExtraMissing, load, missing
from settings import BUNDLED_MODEL, Settings


@pytest.fixture
def base_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install whose extras bring modules that nobody has."""
    monkeypatch.setattr(extras, "BRINGS", dict.fromkeys(BRINGS, ("module_of_an_extra",)))


def test_what_is_missing_is_said_in_one_line_with_the_extras_name(base_install: None) -> None:
    said = "MAGNUS_EMBED needs the extra engine: pip install 'magnus-llm[engine]'"
    assert missing("MAGNUS_EMBED") == said
    with pytest.raises(ExtraMissing) as refused:
        load("json", "MAGNUS_EMBED")
    assert (str(refused.value), refused.value.extra) == (said, "engine")


def test_an_extra_that_is_there_is_loaded() -> None:
    assert missing("MAGNUS_EMBED") is None
    assert load("torch", "MAGNUS_EMBED").__name__ == "torch"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({}, "`magnus up` without --engine"),
        ({"workers": 1, "engine_urls": "http://127.0.0.1:1"}, "`magnus up` without --engine"),
        ({"workers": 0, "embed": "minilm"}, "MAGNUS_EMBED"),
        ({"workers": 0, "encoder": "labse"}, "MAGNUS_ENCODER=sentence-transformers/LaBSE"),
        ({"workers": 0, "predictor": "pooled"}, "MAGNUS_PREDICTOR=pooled"),
        ({"engine_urls": "http://127.0.0.1:1"}, None),
        ({"workers": 0}, None),
    ],
)
def test_a_setting_that_needs_an_extra_is_named_before_anything_starts(
    settings: dict[str, object], what: str | None, base_install: None
) -> None:
    expected = [] if what is None else [f"{what} needs the extra engine: pip install 'magnus-llm[engine]'"]
    assert list(missing_extras(Settings(**settings))) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "what", "extra"),
    [
        (("model", "fetch", "minilm"), "`magnus model fetch`", "engine"),
        (("model", "convert", __file__, "there"), "`magnus model convert`", "engine"),
        (("doctor", "--model", str(BUNDLED_MODEL)), "`magnus doctor --model`", "engine"),
        (("profile",), "`magnus profile`", "engine"),
        (("worker", "--name", "one"), "a worker without --engine-url", "engine"),
        (("worker", "--name", "one", "--embed", str(BUNDLED_MODEL)), "a worker without --engine-url", "engine"),
        (("mcp", "--url", "http://magnus", "--api-key", "key"), "`magnus mcp`", "mcp"),
    ],
)
def test_a_command_that_needs_an_extra_says_so(
    command: tuple[str, ...], what: str, extra: str, base_install: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNUS_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("MAGNUS_REDIS_URL", "redis://127.0.0.1:1")
    done = CliRunner().invoke(commands, command)
    told = done.output + str(done.exception)
    assert f"{what} needs the extra {extra}: pip install 'magnus-llm[{extra}]'" in told
