"""The API on a real, migrated Postgres, with a small tokenizer that makes one token of every word."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from models import keys
from models.session import make_engine, make_sessions
from settings import Settings
from tests.integration.service import MODEL, Api
from tests.integration.stage import Stage
from webapp.app import create_app


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with nothing but a tokenizer."""
    directory = tmp_path_factory.mktemp("model") / MODEL
    directory.mkdir()
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def web_settings(database_url: str, word_model: Path) -> Settings:
    """Settings of a small service."""
    return Settings(
        database_url=database_url,
        model=str(word_model),
        max_prompt_tokens=50,
        max_output_tokens=64,
        max_body_bytes=100_000,
        wait_s=0.2,
        dashboard_password=secrets.token_urlsafe(8),
    )


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    """A database without an API."""
    engine = make_engine(database_url)
    yield Stage(engine)
    engine.dispose()


@pytest.fixture
def api(web_settings: Settings) -> Iterator[Api]:
    """The API, with a key of the tenant `acme`."""
    app = create_app(web_settings)
    engine = make_engine(str(web_settings.database_url))
    with make_sessions(engine).begin() as session:
        _, key = keys.create(session, name="test", tenant="acme")
    yield Api(app.test_client(), engine, key)
    app.extensions["magnus"].close()
    engine.dispose()
