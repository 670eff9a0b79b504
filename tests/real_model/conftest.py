"""The fetched models of the repository's own state directory; `make test-model` fetches them before these tests."""

from pathlib import Path

import pytest

from cli.fetching.known_models import KNOWN_MODELS

STATE_DIR = Path(__file__).parents[2] / ".magnus"


def fetched(name: str) -> Path:
    """The directory of a fetched model."""
    directory = KNOWN_MODELS[name].directory(STATE_DIR)
    assert KNOWN_MODELS[name].is_fetched(directory), f"{name} is not fetched: run `make test-model`"
    return directory


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct."""
    return fetched("smollm2")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2."""
    return fetched("minilm")
