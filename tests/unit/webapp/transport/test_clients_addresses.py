"""The addresses that clients of others use lead to our own calls."""

from typing import Any

import pytest

from webapp.transport.clients_addresses import translated


@pytest.mark.parametrize(
    ("path", "query", "ours"),
    [
        ("/openai/deployments/bundled/embeddings", "api-version=2025-01-01&a=1", ("/v1/embeddings", "a=1")),
        ("/openai/v1/responses", "", ("/v1/responses", "")),
        ("/v2/rerank", "", ("/v1/rerank", "")),
        ("/rerank", "", ("/v1/rerank", "")),
        ("/score", "x=1", ("/v1/score", "x=1")),
        ("/v1/score", "", ("/v1/score", "")),
        ("/scores", "", ("/scores", "")),
    ],
)
def test_each_address_leads_to_its_call(path: str, query: str, ours: tuple[str, str]) -> None:
    seen: list[tuple[str, str]] = []

    def application(environ: dict[str, Any], _: object) -> list[bytes]:
        seen.append((environ["PATH_INFO"], environ["QUERY_STRING"]))
        return []

    translated(application)({"PATH_INFO": path, "QUERY_STRING": query}, print)
    assert seen == [ours]
