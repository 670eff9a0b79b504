"""What the reference page says of a call."""

from collections.abc import Mapping

from webapp.openapi_reference import operations_by_tag, type_text

DOCUMENT = {
    "components": {"schemas": {"Size": {"enum": ["small", "large"], "description": "How large"}}},
    "paths": {
        "/ants/{id}": {
            "post": {
                "tags": ["Ants"],
                "summary": "Change an ant",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {
                                "properties": {"size": {"$ref": "#/components/schemas/Size"}},
                                "required": ["size"],
                            }
                        }
                    }
                },
                "responses": {"404": {"description": "No such ant"}, "200": {"description": "Changed"}},
            }
        },
        "/free": {"get": {"responses": {}}},
    },
}


def test_a_call_has_its_parameters_fields_and_statuses_in_order() -> None:
    tags = operations_by_tag(DOCUMENT)
    assert list(tags) == ["Ants", "Others"]
    (ants,) = tags["Ants"]
    assert (ants.method, ants.path, ants.summary, ants.anchor) == (
        "POST",
        "/ants/{id}",
        "Change an ant",
        "post-ants-id",
    )
    assert [(one.name, one.type, one.required) for one in ants.parameters] == [("id", "text, in the path", True)]
    (size,) = ants.body
    assert (size.name, size.type, size.required) == ("size", "'small' or 'large'", True)
    assert size.description == "How large"
    assert [status for status, _ in ants.statuses] == ["200", "404"]


def test_types_are_said_in_a_few_words() -> None:
    def text(schema: Mapping[str, object]) -> str:
        return type_text(DOCUMENT, schema)

    assert text({"type": "array", "items": {"type": "string"}}) == "list of text"
    assert text({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}) == "integer from 1 or null"
    assert text({"type": "number", "minimum": 0, "maximum": 2}) == "number 0 to 2"
    assert text({"type": "number", "maximum": 2}) == "number to 2"
    assert text({"const": "list"}) == "'list'"
    assert text({}) == "any"
    nested = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
    assert text(nested) == "list of object"
