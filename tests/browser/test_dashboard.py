"""The dashboard in a real Chromium: what it shows, that it stays fresh, that nothing in the database can break it."""

import re

import pytest
from playwright.sync_api import Browser, expect

from models import minute_history
from models.session import make_sessions
from tests.browser.site import PASSWORD, Site, Visitor

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_an_empty_service_explains_what_would_be_shown(visitor: Visitor) -> None:
    page = visitor.go()
    expect(page.get_by_text("The planner has not been heard of for ten seconds")).to_be_visible()
    expect(page.get_by_text("No worker has announced itself within a day.")).to_be_visible()
    expect(page.get_by_text("Nothing has ended yet.")).to_be_visible()
    expect(page.get_by_text("No answers within an hour.")).to_be_visible()
    visitor.go("/requests")
    expect(page.get_by_text("No request has arrived yet.")).to_be_visible()


def test_the_overview_shows_backlog_batches_workers_and_answers(visitor: Visitor, site: Site) -> None:
    site.stage.request("resp_waiting", planner_epoch=1)
    site.answer(7, application="translation")
    site.stage.worker("gpu-1")
    site.stage.sql(
        """insert into batches (worker, policy, status, size, length, predicted_generation_length, estimated_s,
            started_at, progress_tokens)
        values ('gpu-1', 'magnus', 'running', 4, 33, 80, 3.0, clock_timestamp(), 20)"""
    )
    batch = {"ids": ["resp_waiting"], "size": 1, "length": 21, "generation_length": 10, "estimated_s": 1.5}
    site.planner(waiting=1, batches=[batch | {"response_ratio": 4.25, "sealed": True, "starts_in_s": 0.5}])
    page = visitor.go()
    expect(page.locator(".tile", has_text="Backlog").locator(".big")).to_have_text("1")
    expect(page.locator(".tile", has_text="Planner").locator(".big")).to_have_text("magnus")
    worker = page.locator("#part-workers tbody tr")
    expect(worker).to_contain_text(["gpu-1"])
    expect(worker).to_contain_text(["20 of 80"])
    expect(worker).to_contain_text(["10,000 tokens"])  # of one byte each: those of a server, which tells no bytes
    expect(page.locator("#part-batches tbody tr")).to_contain_text(["4.25"])
    expect(page.locator("#part-batches")).to_contain_text("sealed")
    expect(page.locator("#part-applications tbody tr")).to_contain_text(["translation"])
    expect(page.locator("#part-answers tbody tr td").nth(5)).to_have_text("-2")  # predicted 10, actual 12


def test_what_changes_appears_without_a_reload(visitor: Visitor, site: Site) -> None:
    page = visitor.go()
    page.evaluate("window.sameDocument = true")
    site.planner()
    site.answer(1, application="news")
    expect(page.locator("#part-answers")).to_contain_text("news", timeout=15_000)
    expect(page.get_by_text("The planner has not been heard of")).to_have_count(0)
    assert page.evaluate("window.sameDocument")


def test_a_lost_connection_is_said(browser: Browser, site: Site) -> None:
    context = browser.new_context(http_credentials={"username": "magnus", "password": PASSWORD})
    page = context.new_page()
    page.goto(site.url)
    page.route("**/parts*", lambda route: route.abort())
    expect(page.locator("#live")).to_contain_text("trying again", timeout=15_000)
    page.unroute("**/parts*")
    expect(page.locator("#live")).to_contain_text("as of", timeout=15_000)
    context.close()


def test_history_is_drawn_from_the_closed_minutes(visitor: Visitor, site: Site) -> None:
    for n in range(20):
        site.answer(n)
    site.stage.sql(
        "update requests set arrived_at = arrived_at - interval '5 min', finished_at = finished_at - interval '5 min'"
    )
    with make_sessions(site.stage.database)() as session:
        assert minute_history.close_minutes(session) > 0
    site.stage.sql("delete from requests")
    page = visitor.go("/?hours=6")
    bars = page.locator("#part-charts figure").first.locator("rect.good title")
    assert sum(int(n) for text in bars.all_text_contents() for n in re.findall(r": (\d+) completed", text)) == 20
    expect(page.locator("#part-charts a[aria-current]")).to_have_text("6 hours")


def test_applications_sort_by_the_column_that_is_clicked(visitor: Visitor, site: Site) -> None:
    for n, application in enumerate(["b", "a", "a"]):
        site.answer(n, application=application)
    page = visitor.go()
    names = page.locator("#part-applications tbody td:first-child")
    expect(names).to_have_text(["a", "b"])
    site.answer(3, application="b")
    site.answer(4, application="b")
    page.locator("#part-applications th a", has_text="Answers").click()
    expect(names).to_have_text(["b", "a"], timeout=15_000)
    page.locator("#part-applications th a", has_text="Application").click()
    expect(names).to_have_text(["a", "b"])


def test_requests_are_filtered_and_paged(visitor: Visitor, site: Site) -> None:
    for n in range(60):
        site.answer(n, application="even" if n % 2 == 0 else "odd")
    page = visitor.go("/requests?limit=20")
    page.get_by_label("Application").fill("odd")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(30)
    visitor.go("/requests")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.locator("td a.id").last.click()
    expect(page.locator("h1")).to_have_text(f"resp_{0:032x}")
    expect(page.get_by_text("one two three")).to_be_visible()


def test_markup_in_the_database_stays_text_on_every_page(visitor: Visitor, site: Site) -> None:
    made = site.answer(
        1,
        tenant=EVIL,
        application=EVIL,
        instructions=EVIL,
        model=EVIL,
        predictor_version=EVIL,
        output_text=EVIL,
        body={"metadata": {EVIL: EVIL}, "background": True, "stop": [], "sampling": {}},
        error={"code": EVIL, "message": EVIL},
    )
    site.stage.worker(EVIL, model=EVIL)
    site.stage.sql(
        """insert into batches (id, worker, policy, size, length, predicted_generation_length, estimated_s)
        values (5, :evil, :evil, 1, 1, 1, 1)""",
        evil=EVIL,
    )
    site.stage.sql("update requests set batch_id = 5, finish_reason = :evil", evil=EVIL)
    site.stage.sql(
        """insert into model_versions (kind, version, active, sha256, stored, scores, data)
        values ('length', :evil, true, '', '', '{"candidate": {"rmse": "<b>x</b>"}}', '{}')""",
        evil=EVIL,
    )
    site.planner(policy=EVIL)
    for path in ("/", "/parts", "/requests", f"/requests/{made}"):
        page = visitor.go(path)
        expect(page.get_by_text("<img src=x", exact=False).first).to_be_visible()
        assert page.locator("img, main script").count() == 0
        assert page.title() != "owned"
    page = visitor.go()
    with page.expect_response("**/parts*"):
        pass
    site.answer(2, application="later")
    expect(page.locator("#part-answers")).to_contain_text("later", timeout=15_000)
    assert page.locator("img").count() == 0
    assert page.title() != "owned"


def test_pages_work_without_script(browser: Browser, site: Site) -> None:
    site.answer(1, application="plain")
    context = browser.new_context(
        java_script_enabled=False, http_credentials={"username": "magnus", "password": PASSWORD}
    )
    page = context.new_page()
    page.goto(site.url)
    assert "plain" in page.locator("#part-answers").inner_text()
    context.close()


@pytest.mark.parametrize("width", [390, 1400])
def test_no_page_is_wider_than_its_window(visitor: Visitor, site: Site, width: int) -> None:
    site.answer(1, application="a" * 200)
    site.stage.worker("gpu-1")
    visitor.page.set_viewport_size({"width": width, "height": 800})
    for path in ("/", "/requests", f"/requests/resp_{1:032x}"):
        page = visitor.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light_follow_the_system(visitor: Visitor) -> None:
    def paper() -> str:
        return str(visitor.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    visitor.page.emulate_media(color_scheme="light")
    visitor.go()
    light = paper()
    visitor.page.emulate_media(color_scheme="dark")
    assert paper() != light


def test_without_the_password_there_is_nothing_to_see(browser: Browser, site: Site) -> None:
    context = browser.new_context()
    for path in ("/", "/parts", "/requests", "/requests/resp_1"):
        answer = context.request.get(site.url + path)
        assert answer.status == 401
        assert "Basic" in answer.headers["www-authenticate"]
    wrong = browser.new_context(http_credentials={"username": "magnus", "password": "guess"})
    assert wrong.request.get(site.url).status == 401
    context.close()
    wrong.close()
