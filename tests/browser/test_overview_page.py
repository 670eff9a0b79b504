"""The overview in a real Chromium: what it shows, that it stays fresh, that its numbers are the API's."""

import httpx
import pytest
from playwright.sync_api import Browser, expect

from models.connections.session import make_sessions
from models.tenants import api_keys
from tests.browser import busy_service
from tests.browser.site import PASSWORD, Site, Visitor


def test_the_verdict_names_the_limit_and_what_to_do(site: Site, visitor: Visitor) -> None:
    visitor.page.clock.install()
    page = visitor.go()
    expect(page.locator("#verdict")).to_have_text("stuck")
    expect(page.locator("#limit")).to_have_text("no worker")
    expect(page.locator(".attention")).to_contain_text("start one with magnus worker, or everything")
    expect(page.locator(".attention code").first).to_have_text("magnus worker")
    expect(page.locator(".attention")).not_to_contain_text("planned nothing")  # it says so once
    expect(page.locator(".tile.bad", has_text="Workers")).to_be_visible()
    busy_service.fill(site)
    site.stage.sql("update requests set arrived_at = clock_timestamp() + interval '1 min' where status = 'queued'")
    site.refresh(page)
    expect(page.locator("#verdict")).to_have_text("keeping up", timeout=30_000)
    expect(page.locator("#limit")).to_have_text("none")


def test_the_tile_of_workers_counts_those_that_live(site: Site, visitor: Visitor) -> None:
    busy_service.fill(site)
    site.stage.sql("update workers set heartbeat_at = clock_timestamp() - interval '5 min' where name = 'gpu-1'")
    tile = visitor.go().locator(".tile", has_text="Workers")
    expect(tile.locator(".big")).to_have_text("1")
    expect(tile.locator(".note")).to_contain_text("1 worker silent")


def test_the_numbers_are_those_of_the_api(site: Site, visitor: Visitor) -> None:
    busy_service.fill(site)
    with make_sessions(site.stage.database).begin() as session:
        _, key = api_keys.create(session, name="test", tenant="acme")
    stats = httpx.get(f"{site.url}/v1/magnus/stats", headers={"Authorization": f"Bearer {key}"}).json()
    page = visitor.go()
    assert stats["queued"] == busy_service.WAITING
    expect(page.locator(".tile", has_text="Backlog").locator(".big")).to_have_text(str(stats["queued"]))
    expect(page.locator(".tile", has_text="In flight").locator(".big")).to_have_text(str(stats["in_progress"]))
    expect(page.locator(".tile", has_text="Failed").locator(".big")).to_have_text("1")
    visitor.go("/queue")
    expect(page.locator("h1")).to_contain_text(f"{stats['queued']} requests wait")


def test_what_changes_appears_without_a_reload(visitor: Visitor, site: Site) -> None:
    visitor.page.clock.install()
    page = visitor.go()
    page.evaluate("window.sameDocument = true")
    site.planner()
    site.answer(1, application="news")
    site.refresh(page)
    expect(page.locator("#part-answers")).to_contain_text("news", timeout=30_000)
    expect(page.locator("#live-text")).to_contain_text("as of")
    expect(page.locator(".lost")).to_have_count(0)
    assert page.evaluate("window.sameDocument")


def test_a_lost_connection_is_said(browser: Browser, site: Site) -> None:
    context = browser.new_context()
    page = context.new_page()
    Visitor(page, site).sign_in(PASSWORD)
    page.clock.install()
    page.goto(site.url)
    page.route(site.url + "/", lambda route: route.abort())
    site.refresh(page)
    expect(page.locator("#live")).to_contain_text("trying again", timeout=30_000)
    page.unroute(site.url + "/")
    site.refresh(page)
    expect(page.locator("#live")).to_contain_text("as of", timeout=30_000)
    context.close()


def test_applications_sort_by_the_column_that_is_clicked(visitor: Visitor, site: Site) -> None:
    for n, application in enumerate(["b", "a", "a"]):
        site.answer(n, application=application)
    page = visitor.go()
    names = page.locator("#part-applications tbody td:first-child")
    expect(names).to_have_text(["a", "b"])
    page.locator("#part-applications th a", has_text="Application").click()
    expect(names).to_have_text(["a", "b"])
    expect(page.locator("#part-applications th[aria-sort]")).to_have_text("Application")


@pytest.mark.parametrize("path", ["/?over=2d", "/?sort=x", "/predictions?over=x", "/usage?days=9", "/jobs?order=x"])
def test_an_unknown_choice_is_a_page_that_says_so(browser: Browser, site: Site, path: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    Visitor(page, site).sign_in(PASSWORD)
    answer = page.goto(site.url + path)
    assert answer is not None
    assert answer.status == 400
    expect(page.get_by_role("link", name="Back to the overview")).to_be_visible()
    context.close()
