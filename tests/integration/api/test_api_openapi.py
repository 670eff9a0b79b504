"""Hostile and odd requests made from our own OpenAPI document: no 500, and every answer as the document says."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy.exc import OperationalError

from settings import VERSION
from tests.integration.answering_worker import end
from tests.integration.api_service import Api
from tests.integration.conftest import running_api, small_service

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
OPERATIONS = [
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("POST", "/v1/batches/{id}"),
    ("POST", "/v1/batches/{id}/cancel"),
    ("POST", "/v1/batches/{id}/pause"),
    ("POST", "/v1/batches/{id}/resume"),
    ("POST", "/v1/batches/{id}/retry"),
    ("GET", "/v1/batches/{id}/results"),
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/{id}"),
    ("DELETE", "/v1/files/{id}"),
    ("GET", "/v1/files/{id}/content"),
    ("GET", "/v1/magnus/stats"),
    ("GET", "/v1/magnus/usage"),
    ("GET", "/v1/magnus/promises"),
    ("POST", "/v1/magnus/quotes"),
    ("POST", "/v1/magnus/webhooks"),
    ("GET", "/v1/magnus/webhooks"),
    ("DELETE", "/v1/magnus/webhooks/{id}"),
    ("POST", "/v1/magnus/webhooks/{id}/rotate"),
    ("GET", "/v1/magnus/webhooks/{id}/deliveries"),
    ("POST", "/v1/magnus/webhooks/{id}/deliveries/{delivery}/redeliver"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/chat/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/chat/completions/{id}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("GET", "/v1/messages/{id}"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/score"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("DELETE", "/v1/responses/{id}"),
    ("GET", "/v1/responses/{id}/input_items"),
    ("GET", "/v1/responses/{id}/why"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
]
ODD = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


@pytest.fixture(scope="module")
def refusing_api(module_database_url: str, word_model: Path) -> Iterator[Api]:
    """An API whose schemas refuse what is wrong, and not its bound of bodies: lists may have thousands of texts."""
    small = small_service(module_database_url, word_model)
    yield from running_api(small.model_copy(update={"max_body_bytes": 8 * 2**20}))


@pytest.fixture(scope="module")
def answering_api(refusing_api: Api) -> Iterator[Api]:
    """An API behind which everything that waits is answered at once."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with suppress(OperationalError):  # the API's connections are cut after 2 s, on a busy machine here, too
                end(
                    refusing_api,
                    """update requests set status = 'completed', output_text = 'x', output_tokens = 1,
                    finished_at = clock_timestamp()
                    where status = 'queued' and (body ? 'stream' or not (body->>'background')::bool) returning id""",
                )
            stop.wait(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    yield refusing_api
    stop.set()
    thread.join()


@pytest.fixture(scope="module")
def document(answering_api: Api) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_wsgi("/openapi.json", answering_api.client.application)


def test_the_document_names_the_installed_version_every_call_and_the_served_model(refusing_api: Api) -> None:
    document = refusing_api.client.get("/openapi.json").get_json()
    assert document["info"]["version"] == VERSION
    described = [(method.upper(), path) for path, calls in document["paths"].items() for method in calls]
    assert sorted(described) == sorted(OPERATIONS)
    assert document["components"]["schemas"]["CreateResponse"]["properties"]["model"]["enum"] == ["words"]
    assert "HTTPError" not in document["components"]["schemas"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_whatever_is_sent_the_answer_is_what_the_document_says(
    method: str, path: str, mode: GenerationMode, answering_api: Api, document: schemathesis.BaseSchema
) -> None:
    @ODD
    @given(document[path][method].as_strategy(generation_mode=mode))
    def send(case: Case[Any]) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {answering_api.key}"}, checks=CHECKS)

    send()
