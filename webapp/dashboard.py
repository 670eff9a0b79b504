"""The dashboard."""

from apiflask import APIBlueprint

from webapp.auth import require_dashboard_password

pages = APIBlueprint("dashboard", __name__, enable_openapi=False)
pages.before_request(require_dashboard_password)
