"""The dashboard."""

from flask import Blueprint

from webapp.auth import require_dashboard_password

pages = Blueprint("dashboard", __name__)
pages.before_request(require_dashboard_password)
