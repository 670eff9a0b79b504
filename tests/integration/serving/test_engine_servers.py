"""What `magnus up --engine` and `magnus doctor --engine` find out about a server."""

import pytest

from cli.checks.server_findings import engine_findings
from cli.checks.startup_checks import with_engines
from inference.remote.server_errors import ServerUnusable
from settings import BUNDLED_MODEL, Settings
from tests.integration.stub_engine_server import StubServer


@pytest.fixture
def server(server: StubServer) -> StubServer:
    server.root = str(BUNDLED_MODEL)
    return server


def test_the_service_takes_the_servers_model_and_the_tokenizer_beside_it(server: StubServer):
    settings = with_engines(Settings(engine_urls=f"{server.url}, {server.url}/v1"))
    assert (settings.model, settings.model_name) == (str(BUNDLED_MODEL), "stub")


def test_a_configured_tokenizer_is_kept(server: StubServer):
    assert with_engines(Settings(engine_urls=server.url, model="/models/mine")).model == "/models/mine"


def test_with_several_models_a_server_is_asked_only_whether_it_answers(server: StubServer):
    settings = Settings(engine_urls=server.url, model=str(BUNDLED_MODEL), models="/models/large")
    assert with_engines(settings) == settings
    server.die()
    with pytest.raises(ServerUnusable, match="ConnectError"):
        with_engines(settings)


def test_servers_of_two_models_and_servers_that_are_away_are_refused_by_name(server: StubServer):
    other = StubServer()
    other.model = "other"
    try:
        with pytest.raises(ServerUnusable, match=f"{other.url} cannot be used: it does not serve stub, but other"):
            with_engines(Settings(engine_urls=f"{server.url},{other.url}", model="/models/mine"))
    finally:
        other.die()
    with pytest.raises(ServerUnusable, match="ConnectError"):
        with_engines(Settings(engine_urls=other.url))


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_whose_tokenizer_gives_no_ids_is_refused_with_the_remedy(server: StubServer, silent: bool):
    server.root = None
    server.posts["/tokenize"] = (200, "{}")
    server.slow_posts = int(silent)
    with pytest.raises(ServerUnusable, match=r"/tokenize gives no ids .*: give MAGNUS_MODEL"):
        with_engines(Settings(engine_urls=server.url))


def test_doctor_says_what_a_server_can_do_and_what_is_lost(server: StubServer):
    found = {finding.check: finding for finding in engine_findings(Settings(), server.url)}
    assert found["server"].found == f"vllm at {server.url}"
    assert found["memory"].found == "1,600 tokens, sum over rows, in blocks of 16"
    assert (found["token ids in"].found, found["tokenizer"].remedy) == ("yes", None)
    server.root = None
    found = {finding.check: finding for finding in engine_findings(Settings(), server.url)}
    assert found["tokenizer"].found == f"from vllm+{server.url}"
    server.tokenizes = False
    found = {finding.check: finding for finding in engine_findings(Settings(), server.url)}
    assert "MAGNUS_MODEL" in (found["tokenizer"].remedy or "")
    server.die()
    (unreachable,) = engine_findings(Settings(), server.url)
    assert unreachable.remedy is not None
