"""The page /docs: what the OpenAPI document says, as HTML; it has no script and loads nothing from elsewhere."""

from apiflask import APIBlueprint
from flask import current_app, render_template

from webapp.reference.operations import operations_by_tag

pages = APIBlueprint("reference", __name__, enable_openapi=False)


@pages.get("/docs")
def reference() -> str:
    """Every call with its fields and statuses; it needs no key and shows nothing of anybody."""
    return render_template("reference.html", tags=operations_by_tag(current_app.spec))  # type: ignore[attr-defined]
