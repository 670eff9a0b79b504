"""The OpenAPI document, and the page /docs that shows it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apiflask import APIBlueprint
from flask import current_app, render_template

from webapp.client_errors import Problem

DEEPEST = 3  # levels of nested objects that a type's text shows; no body has more

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
pages = APIBlueprint("reference", __name__, enable_openapi=False)


@dataclass(frozen=True, slots=True)
class FieldText:
    """A field of a body or an answer, a parameter or a header."""

    name: str
    type: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class OperationText:
    """The entry of one call in the reference."""

    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[FieldText, ...]
    body: tuple[FieldText, ...]
    answer: tuple[FieldText, ...]
    statuses: tuple[tuple[str, str], ...]

    @property
    def anchor(self) -> str:
        """The part of the page's address behind #."""
        return f"{self.method}-{self.path.strip('/').replace('/', '-')}".replace("{", "").replace("}", "").lower()


def operations_by_tag(document: Mapping[str, Any]) -> dict[str, list[OperationText]]:
    """Returns all calls by tag, in the document's order."""
    tags: dict[str, list[OperationText]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = next(iter(operation.get("tags", ())), "Others")
            tags.setdefault(tag, []).append(_operation(document, path, method, operation))
    return tags


def _operation(document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]) -> OperationText:
    responses = operation.get("responses", {})
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    answer = responses.get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return OperationText(
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=tuple(
            FieldText(
                one["name"],
                f"{type_text(document, one.get('schema', {}))}, in the {one['in']}",
                bool(one.get("required")),
                one.get("description") or one.get("schema", {}).get("description", ""),
            )
            for one in operation.get("parameters", ())
        ),
        body=tuple(_fields(document, body)),
        answer=tuple(_fields(document, answer)),
        statuses=tuple((status, one.get("description", "")) for status, one in sorted(responses.items())),
    )


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[FieldText]:
    schema = _resolved(document, schema)
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        description = field.get("description") or _resolved(document, field).get("description", "")
        yield FieldText(name, type_text(document, field), name in required, description)


def type_text(document: Mapping[str, Any], schema: Mapping[str, Any], depth: int = DEEPEST) -> str:
    """Returns a schema's type in a few words, such as `list of text or null`."""
    schema = _resolved(document, schema)
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " or ".join(repr(value) for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(type_text(document, one, depth) for one in schema[several]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_text(document, schema.get('items', {}), depth)}"
    if kind == "object" and depth and schema.get("properties"):
        inner = (f"{name}: {type_text(document, one, depth - 1)}" for name, one in schema["properties"].items())
        return "{" + ", ".join(inner) + "}" if depth < DEEPEST else "object"
    names = {"string": "text", "null": "null", "boolean": "true or false", None: "any"}
    return f"{names.get(kind, kind)}{_bounds(schema)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    return f" from {low}" if high is None else f" to {high}" if low is None else f" {low} to {high}"


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"].get(reference.rpartition("/")[2], {})
    return found


def describe(spec: dict[str, Any], *, model: str) -> dict[str, Any]:
    """Adds error bodies, streams, headers and the model's name to `spec`, and returns it."""
    schemas = spec["components"]["schemas"]
    problem = Problem.model_json_schema(ref_template=SCHEMAS + "{model}")
    schemas |= problem.pop("$defs") | {"Problem": problem}
    for replaced in ("HTTPError", "ValidationError"):
        schemas.pop(replaced, None)
    for name in ("CreateResponse", "CreateChatCompletion", "CreateCompletion"):
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
                    answer["content"] = {"application/problem+json": {"schema": {"$ref": SCHEMAS + "Problem"}}}
                if int(status) in (200, 429, 503):
                    answer["headers"] = {"Retry-After": RETRY_AFTER, **LIMIT_HEADERS}
    spec["paths"]["/v1/files"]["post"]["requestBody"] = UPLOAD
    return spec


@pages.get("/docs")
def reference() -> str:
    """Renders every call with its fields and statuses; the page needs no key and shows no tenant's data."""
    return render_template("reference.html", tags=operations_by_tag(current_app.spec))  # type: ignore[attr-defined]
