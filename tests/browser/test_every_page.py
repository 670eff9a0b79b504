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
    "batch": f"/batches/batch_{'b' * 32}",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/we_1",
    "promises": "/promises",
    "usage": "/usage",
    "audit": "/audit",
}
QUOTE_NOBODY = {"/promises"}  # sums alone: without anything that clients write
every_page = pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
WORDS_OF_THE_EMPTY = {
    "/": "No request has ended yet",
    "/queue": "No planner has reported",
    "/workers": "magnus worker",
    "/predictions": "No answer with a prediction",
    "/jobs": "magnus submit",
    "/batches": "magnus batch run",
    "/webhooks": "magnus webhooks",
    "/promises": "/v1/magnus/quotes",
    "/usage": "magnus submit",
    "/audit": "No action yet",
}


@every_page
def test_a_page_has_no_fault_in_light_and_dark_and_fits_its_window(onlooker: Visitor, path: str) -> None:
    for scheme, width in (("light", 1280), ("dark", 390), ("light", 390), ("dark", 1280)):
        onlooker.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        onlooker.page.set_viewport_size({"width": width, "height": 800})
        page = onlooker.go(path)
        assert faults_of(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # browsers tell styles whether a box scrolls once a frame, after its layout
        page.evaluate("new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))")
        scrolling = page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth)"
            ".map(b => [b.getAttribute('aria-label'), getComputedStyle(b, '::before').display])"
        )
        assert all(width == 390 and hint == "block" for _, hint in scrolling), scrolling
        cut = "[...document.querySelectorAll('td')].filter(c => c.scrollWidth > c.clientWidth).map(c => c.textContent)"
        assert page.evaluate(cut) == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(n) for n in paper[4:-1].split(", ")) > 380) == (scheme == "light")


def test_markup_in_the_database_stays_text_on_every_page(site: Site, visitor: Visitor) -> None:
    busy_service.fill(site, EVIL)
    for path in PAGES.values():
        page = visitor.go(path)
        if path not in QUOTE_NOBODY:
            expect(page.get_by_text("<img src=x", exact=False).first).to_be_attached()
        assert page.locator("main img, main script").count() == 0, path
        assert page.title() != "owned", path


def test_the_keyboard_reaches_every_control_of_every_page(onlooker: Visitor) -> None:
    for path in PAGES.values():
        page = onlooker.go(path)
        controls = page.evaluate("""() => {
            const all = [...document.querySelectorAll('a[href], button, select, summary, input:not([type=hidden])')];
            const controls = all.filter((e) => e.checkVisibility());
            window.missed = new Set(controls);
            document.addEventListener('focusin', (event) => window.missed.delete(event.target));
            return controls.length;
        }""")
        for _ in range(controls + 20):  # more than the controls, because regions that scroll take the focus as well
            page.keyboard.press("Tab")
        assert page.evaluate("[...window.missed].map((e) => e.outerHTML.slice(0, 120))") == [], path


def test_an_empty_list_says_what_to_do_next(visitor: Visitor) -> None:
    for path, words in WORDS_OF_THE_EMPTY.items():
        page = visitor.go(path)
        expect(page.get_by_text(words).first).to_be_visible()
        assert faults_of(page) == [], path


def test_every_page_is_shown_without_script_too(busy: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Visitor(page, busy).sign_in(PASSWORD)
    for path in PAGES.values():
        page.goto(busy.url + path)
        assert page.locator("main h1").inner_text(), path
    context.close()


def test_nobody_sees_a_page_without_signing_in(site: Site, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    for path in PAGES.values():
        answer = context.request.get(site.url + path, headers={"Accept": "*/*"})
        assert answer.status == 401, path
        assert "Basic" in answer.headers["www-authenticate"]
        page.goto(site.url + path)
        expect(page).to_have_url(f"{site.url}/sign-in?next={path}")
    context.close()


def test_charts_have_marks_from_the_first_sample_on(onlooker: Visitor) -> None:
    for path in ("/", "/?over=6h", "/?over=7d", "/predictions"):
        page = onlooker.go(path)
        figures = page.locator("figure.chart").all()
        assert len(figures) >= 5, path
        assert all(figure.locator("polyline, rect.hover, circle, p.empty").count() for figure in figures), path
        assert page.locator("figure.chart polyline").count() >= 1, path
