"""The API on a real, migrated Postgres, with a small tokenizer that makes one token of every word."""

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from pydantic import SecretStr
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from werkzeug.serving import make_server

from models.connections.session import make_engine, make_sessions
from models.tenants import api_keys
from settings import Settings
from tasks.planning.leader import Leader
from tests.integration.api_service import MODEL, Api
from tests.integration.bulk_stage import BulkStage
from tests.integration.database_stage import Stage
from tests.integration.planner_stage import RULES
from webapp.app import create_app


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with nothing but a tokenizer."""
    directory = tmp_path_factory.mktemp("model") / MODEL
    directory.mkdir()
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def small_service(database_url: str, model: Path) -> Settings:
    """Settings with limits so small that tests reach them easily."""
    return Settings(
        database_url=database_url,
        model=str(model),
        max_prompt_tokens=50,
        max_output_tokens=64,
        max_body_bytes=100_000,
        wait_s=20.0,
        dashboard_password=SecretStr(secrets.token_urlsafe(9)),
    )


def running_api(settings: Settings) -> Iterator[Api]:
    """The API with a key of the tenant `acme`; its connections are closed afterwards."""
    app = create_app(settings)
    engine = make_engine(str(settings.database_url))
    with make_sessions(engine).begin() as session:
        _, key = api_keys.create(session, name="test", tenant="acme")
    yield Api(app.test_client(), engine, key)
    app.extensions["magnus"].close()
    engine.dispose()


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    """A database without an API."""
    engine = make_engine(database_url)
    yield Stage(engine)
    engine.dispose()


@pytest.fixture
def web_settings(database_url: str, word_model: Path, request: pytest.FixtureRequest) -> Settings:
    """Settings of a service on a fresh database; a call of a test that is marked `unanswered` gives up soon."""
    settings = small_service(database_url, word_model)
    unanswered = request.node.get_closest_marker("unanswered") is not None
    return settings.model_copy(update={"wait_s": 0.2}) if unanswered else settings


@pytest.fixture
def api(web_settings: Settings) -> Iterator[Api]:
    """The API on a fresh database."""
    yield from running_api(web_settings)


@pytest.fixture
def base_url(api: Api) -> Iterator[str]:
    """The API's address for clients that speak HTTP, with /v1."""
    server = make_server("127.0.0.1", 0, api.client.application, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(api: Api, base_url: str) -> Iterator[OpenAI]:
    """The official client."""
    with OpenAI(api_key=api.key, base_url=base_url, max_retries=0) as client:
        yield client


@pytest.fixture
def bulk(api: Api) -> BulkStage:
    """The background work of the API's bulk jobs."""
    return BulkStage(api)


@pytest.fixture(scope="module")
def refusing_api(module_database_url: str, word_model: Path) -> Iterator[Api]:
    """The API for tests whose calls are all refused, so that they can share it."""
    yield from running_api(small_service(module_database_url, word_model))


@pytest.fixture
def leader(stage: Stage) -> Iterator[Leader]:
    """A planner under RULES; it resigns in the end."""
    leader = Leader(stage.database, RULES)
    yield leader
    leader.resign()
