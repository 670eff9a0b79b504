"""Somebody signs in by clicking, at a real OpenID provider on another site than the dashboard."""

import socket

from playwright.sync_api import Browser, expect
from pydantic import SecretStr

from settings import Settings
from tests.browser.conftest import running_site
from tests.browser.site import PASSWORD, Visitor
from tests.integration.tenants.openid_stage import at_provider, running_provider


def test_somebody_signs_in_by_clicking_acts_and_signs_out(browser: Browser, database_url: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings(database_url=database_url, dashboard_password=SecretStr(PASSWORD), log_level="error")
    with (
        running_provider() as issuer,
        running_site(at_provider(settings, issuer, f"http://127.0.0.1:{port}"), port) as site,
        browser.new_context() as context,
    ):
        context.route("https://**", lambda route: route.abort())  # a style sheet of the provider's pages
        visitor = Visitor(context.new_page(), site)
        page = visitor.go("/queue")
        expect(page).to_have_url(f"{site.url}/sign-in?next=/queue")
        page.get_by_role("link", name="Sign in at localhost").click()
        page.get_by_role("button", name="alice").click()
        expect(page).to_have_url(f"{site.url}/queue")
        page.get_by_role("button", name="Pause planning").click()
        expect(page.get_by_text("planning is paused since")).to_be_visible()
        visitor.go("/audit")
        expect(page.get_by_role("cell", name="alice@example.com (localhost, subject alice)")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key or the dashboard's password")).to_be_visible()
        visitor.go("/queue")
        expect(page).to_have_url(f"{site.url}/sign-in?next=/queue")
        assert [complaint for complaint in visitor.complaints if complaint.startswith("CSP")] == []
