"""The objects that the dashboard's pages share, beside those of every call."""

from dataclasses import dataclass

from flask import current_app

from webapp.dashboard.company_sign_in import CompanySignIn
from webapp.dashboard.page_reads import PageReads

EXTENSION = "magnus_dashboard"


@dataclass(frozen=True)
class DashboardContext:
    """The objects that the dashboard's pages share."""

    reads: PageReads  # the figures that all operators see
    company: CompanySignIn  # sign-in by the company's accounts
    password: str | None


def current_dashboard() -> DashboardContext:
    """Returns the dashboard's context of the app that handles the current request."""
    context: DashboardContext = current_app.extensions[EXTENSION]
    return context
