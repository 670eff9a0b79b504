"""Completes the OpenAPI document that APIFlask makes; `webapp/dashboard/openapi_page.py` shows it at /docs."""

from typing import Any

from protocol.client_errors import Problem
from protocol.messages.message_objects import MessageError

SCHEMAS = "#/components/schemas/"
IDEMPOTENCY_KEY = {
    "in": "header",
    "name": "Idempotency-Key",
    "description": "A retry with the same key and the same body gives the first response again",
    "schema": {"type": "string", "pattern": "^[ -~]{1,255}$"},
}
PREFER = {
    "in": "header",
    "name": "Prefer",
    "description": "`wait=N`: wait at most N seconds for the end; a retrieval waits only if asked to",
    "schema": {"type": "string"},
}
WAIT_OR_STREAM = {  # by path: the method whose calls may wait, and may answer with a stream
    "/v1/responses": "post",
    "/v1/responses/{id}": "get",
    "/v1/chat/completions": "post",
    "/v1/completions": "post",
    "/v1/messages": "post",
}
WAIT = ("/v1/embeddings", "/v1/rerank", "/v1/score")  # calls that wait for an answer that is never a stream
EVENT = {  # one of the server-sent events of a stream
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]"}},
}
UPLOAD = {  # the body of POST /v1/files, which APIFlask does not know, because it is read as a stream
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary", "description": "JSON lines, UTF-8"},
                    "purpose": {"type": "string", "enum": ["batch"]},
                    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                },
            }
        }
    },
}
PROBLEM = {"application/problem+json": {"schema": {"$ref": SCHEMAS + "Problem"}}}
MESSAGE_ERROR = {"application/json": {"schema": {"$ref": SCHEMAS + "MessageError"}}}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
RETRY_AFTER = {
    "description": "Seconds after which the answer is likely there",
    "schema": {"type": "integer", "minimum": 1},
}
LIMIT_HEADERS = {
    f"x-ratelimit-{what}-{of}": {"description": f"{says} {unit}", "schema": {"type": kind}}
    for of, unit in (("requests", "of the tenant's rate"), ("tokens", "of queued prompts; for submissions only"))
    for what, says, kind in (
        ("limit", "The limit", "integer"),
        ("remaining", "What is left", "integer"),
        ("reset", "When all of it is free again, such as 1m30s,", "string"),
    )
}


def describe(spec: dict[str, Any], *, model: str) -> dict[str, Any]:
    """Adds error bodies, streams, headers and the model's name to `spec`, and returns it."""
    schemas = spec["components"]["schemas"]
    problem = Problem.model_json_schema(ref_template=SCHEMAS + "{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    message_error = MessageError.model_json_schema(ref_template=SCHEMAS + "{model}")
    schemas |= message_error.pop("$defs") | {"MessageError": message_error}
    for replaced in ("HTTPError", "ValidationError"):
        schemas.pop(replaced, None)
    for name in ("CreateResponse", "CreateChatCompletion", "CreateCompletion", "CreateMessage"):
        if name in schemas:
            schemas[name]["properties"]["model"]["enum"] = [model]
    for path in WAIT:
        spec["paths"][path]["post"]["parameters"].append(PREFER)
    for path, method in WAIT_OR_STREAM.items():
        operation = spec["paths"][path][method]
        operation["parameters"].append(PREFER)
        operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": EVENT}
    spec["paths"]["/v1/files/{id}/content"]["get"]["responses"]["200"]["content"] = BYTES
    spec["paths"]["/v1/magnus/usage"]["get"]["responses"]["200"]["content"]["text/csv"] = {"schema": {"type": "string"}}
    for path, operations in spec["paths"].items():
        for operation in operations.values():
            if "requestBody" in operation:
                operation["requestBody"]["required"] = True
            if "requestBody" in operation and path in (*WAIT_OR_STREAM, *WAIT):
                operation["parameters"].append(IDEMPOTENCY_KEY)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    answer["content"] = MESSAGE_ERROR if path.startswith("/v1/messages") else PROBLEM
                if int(status) in (200, 429, 503):
                    answer["headers"] = {"Retry-After": RETRY_AFTER, **LIMIT_HEADERS}
    spec["paths"]["/v1/files"]["post"]["requestBody"] = UPLOAD
    return spec
