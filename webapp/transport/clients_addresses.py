"""Serves the addresses of clients of Azure (`/openai/…`, whatever their version), Cohere and vLLM."""

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

OURS = re.compile(r"/openai/(?:deployments/[^/]+/|v1/)?(?=.)")  # beginnings of addresses that are replaced by `/v1/`

OTHERS = {"/v2/rerank": "/v1/rerank", "/rerank": "/v1/rerank", "/score": "/v1/score"}
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def translated(application: Application) -> Application:
    """Returns the WSGI application, which now serves these addresses, too; only the body names the model."""

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        found = OURS.match(environ["PATH_INFO"])
        if found:
            query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
            environ["PATH_INFO"] = "/v1/" + environ["PATH_INFO"][found.end() :]
            environ["QUERY_STRING"] = urlencode([one for one in query if one[0] != "api-version"])
        environ["PATH_INFO"] = OTHERS.get(environ["PATH_INFO"], environ["PATH_INFO"])
        return application(environ, start_response)

    return call
