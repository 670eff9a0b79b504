"""The page /docs, which shows the OpenAPI document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from apiflask import APIBlueprint
from flask import current_app, render_template

DEEPEST = 3  # levels of nested objects that a type's text shows; no body has more


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


@pages.get("/docs")
def reference() -> str:
    """Renders every call with its fields and statuses; the page needs no key and shows no tenant's data."""
    return render_template("reference.html", tags=operations_by_tag(current_app.spec))  # type: ignore[attr-defined]
