"""What holds on every page: nothing foreign, no script in data, both themes, narrow windows, keyboard, names."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import busy_service
from tests.browser.accessibility import faults_of
from tests.browser.busy_service import EVIL
from tests.browser.site import PASSWORD, Site, Visitor

JOB = f"resp_{1:032x}"
PAGES = {
    "overview": "/",
    "queue": "/queue",
    "workers": "/workers",
    "predictions": "/predictions",
    "jobs": "/jobs",
    "job": f"/jobs/{JOB}",
    "batches": "/batches",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/we_1",
    "usage": "/usage",
    "audit": "/audit",
}
every_page = pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
WORDS_OF_THE_EMPTY = {
    "/": "Nothing has ended yet",
    "/queue": "The planner has not been heard of",
    "/workers": "magnus worker",
    "/predictions": "No answer with a prediction",
    "/jobs": "magnus submit",
    "/batches": "magnus batch run",
    "/webhooks": "magnus webhooks",
    "/usage": "magnus submit",
    "/audit": "Nobody has done anything yet",
}


@pytest.fixture
def busy(site: Site) -> Site:
    """The site with a busy service behind it."""
    busy_service.fill(site)
    return site


@every_page
def test_a_page_of_a_busy_service_has_no_fault_in_light_and_dark(busy: Site, visitor: Visitor, path: str) -> None:
    for scheme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page = visitor.go(path)
        assert faults_of(page) == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(n) for n in paper[4:-1].split(", ")) > 380) == (scheme == "light")


@every_page
@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_its_window(busy: Site, visitor: Visitor, path: str, width: int) -> None:
    visitor.page.set_viewport_size({"width": width, "height": 800})
    page = visitor.go(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults_of(page) == []


@every_page
def test_markup_in_the_database_stays_text(site: Site, visitor: Visitor, path: str) -> None:
    busy_service.fill(site, EVIL)
    page = visitor.go(path)
    expect(page.get_by_text("<img src=x", exact=False).first).to_be_attached()
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "owned"


@every_page
def test_the_keyboard_reaches_every_control(busy: Site, visitor: Visitor, path: str) -> None:
    page = visitor.go(path)
    controls = page.evaluate("""() => {
        const all = [...document.querySelectorAll('a[href], button, select, summary, input:not([type=hidden])')];
        window.controls = all.filter((e) => e.checkVisibility());
        return window.controls.length;
    }""")
    reached = set()
    for _ in range(controls + 40):  # and the regions that scroll
        page.keyboard.press("Tab")
        reached.add(page.evaluate("window.controls.indexOf(document.activeElement)"))
    assert reached - {-1} == set(range(controls))


@pytest.mark.parametrize("path", WORDS_OF_THE_EMPTY)
def test_an_empty_list_says_what_to_do_next(visitor: Visitor, path: str) -> None:
    page = visitor.go(path)
    expect(page.get_by_text(WORDS_OF_THE_EMPTY[path]).first).to_be_visible()
    assert faults_of(page) == []


@every_page
def test_a_page_is_shown_without_script_too(busy: Site, browser: Browser, path: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Visitor(page, busy).sign_in(PASSWORD)
    page.goto(busy.url + path)
    assert page.locator("main h1").inner_text()
    context.close()


@every_page
def test_nobody_sees_a_page_without_signing_in(site: Site, browser: Browser, path: str) -> None:
    context = browser.new_context()
    answer = context.request.get(site.url + path, headers={"Accept": "*/*"})
    assert answer.status == 401
    assert "Basic" in answer.headers["www-authenticate"]
    page = context.new_page()
    page.goto(site.url + path)
    expect(page).to_have_url(f"{site.url}/sign-in?next={path}")
    context.close()


@pytest.mark.parametrize("path", ["/", "/?over=6h", "/?over=7d", "/predictions"])
def test_charts_have_marks_from_the_first_sample_on(busy: Site, visitor: Visitor, path: str) -> None:
    page = visitor.go(path)
    figures = page.locator("figure.chart").all()
    assert len(figures) >= 5
    assert all(figure.locator("polyline, rect.hover, p.empty").count() for figure in figures)
    assert page.locator("figure.chart polyline").count() >= 4
