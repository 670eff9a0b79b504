"""What operators see and do on the pages below the overview, in a real Chromium."""

import pytest
from playwright.sync_api import expect

from tests.browser import busy_service
from tests.browser.site import Site, Visitor


@pytest.fixture(autouse=True)
def busy(site: Site) -> None:
    """Every test has a busy service."""
    busy_service.fill(site)


def audited(site: Site) -> list[tuple[str, str]]:
    """What operators did, newest first; not what the busy service begins with."""
    rows = site.stage.sql("select action, target from audit_entries where actor <> 'me' order by id desc")
    return [(row.action, row.target) for row in rows]


def test_the_queue_shows_what_is_served_next_and_why(visitor: Visitor) -> None:
    page = visitor.go("/queue")
    batches = page.get_by_role("region", name="Waiting batches").locator("tbody tr")
    expect(batches).to_have_count(3)
    expect(batches.first).to_contain_text("7.00")
    expect(page.locator(".why")).to_contain_text("response ratio is the highest")
    assert page.locator("svg.timeline rect:not(.track)").count() == 3
    page.get_by_label("Application").select_option("translation")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr").first).to_contain_text("2 of 4")
    visitor.go("/queue?tenant=nobody")
    expect(page.get_by_text("None of the requests that the planner names matches this filter.")).to_be_visible()


def queue_of(site: Site, policy: str, number: int) -> None:
    """Requests of two tenants that wait under this policy, in batches of five; one of them has gone meanwhile."""
    stage = site.stage
    stage.sql("delete from requests where status = 'queued'")
    for n in range(number):
        stage.request(f"resp_{n:028x}wait", planner_epoch=1, tenant=f"t{n % 2}", predicted_tokens=5 + 10 * (n % 9))
    ids = [*stage.requests("status")]
    ids = [*(one for one in ids if one.endswith("wait")), "resp_gone"]
    batches = [
        {
            "ids": ids[n : n + 5],
            "size": len(ids[n : n + 5]),
            "starts_in_s": n / 5,
            "estimated_s": 0.0 if policy == "vs" else 1.0,  # as that policy has it
            "response_ratio": 2.5,
        }
        for n in range(0, len(ids), 5)
    ]
    site.planner(policy, requests=len(ids), batches=batches)
    site.forget()


def column_names(visitor: Visitor, region: str) -> list[str]:
    table = visitor.page.get_by_role("region", name=region)
    return table.locator("th").all_text_contents()


def test_under_a_policy_that_lets_requests_join_singly_the_next_ones_and_groups_of_all_are_shown(
    visitor: Visitor, site: Site
) -> None:
    queue_of(site, "fusion", 60)
    page = visitor.go("/queue")
    expect(page.get_by_role("region", name="Next requests").locator("tbody tr")).to_have_count(20)
    assert column_names(visitor, "Next requests") == [
        *("#", "Request", "Length", "Predicted", "Waiting", "Starts in", "Tenant", "Application")
    ]
    assert page.locator("svg.timeline").count() == 0
    groups = page.get_by_role("region", name="Groups of waiting requests").locator("tbody tr")
    counts = [int(row.locator("td").nth(2).text_content() or 0) for row in groups.all()]
    assert sum(counts) == 60
    assert page.locator("td:has-text('–')").count() == 0


@pytest.mark.parametrize(
    ("policy", "own"), [("vs", []), ("magnus", ["Takes", "Starts in", "Response ratio", "Wasted reads"])]
)
def test_under_a_policy_with_batches_only_the_figures_that_it_uses_are_shown(
    visitor: Visitor, site: Site, policy: str, own: list[str]
) -> None:
    queue_of(site, policy, 150)
    page = visitor.go("/queue")
    expect(page.get_by_role("region", name="Waiting batches").locator("tbody tr")).to_have_count(20)
    names = column_names(visitor, "Waiting batches")
    assert [name for name in names if name in ("Takes", "Starts in", "Response ratio", "Wasted reads")] == own
    assert page.locator("svg.timeline").count() == len(own[:1])
    expect(page.get_by_text("and 10 batches more")).to_be_visible()


def test_a_queue_without_a_planner_or_of_requests_in_no_batch_says_so(visitor: Visitor, site: Site) -> None:
    site.planner(requests=busy_service.WAITING, batches=[])
    page = visitor.go("/queue")
    expect(page.get_by_text("No request waits in the policy's queue: these wait for")).to_be_visible()
    site.stage.sql("delete from service_state where name = 'planner'")
    page = visitor.go("/queue")
    expect(page.locator(".acts .state")).to_have_text("no planner reports", timeout=30_000)


def test_planning_is_paused_and_resumed(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/queue")
    page.get_by_role("button", name="Pause planning").click()
    expect(page.get_by_text("planning is paused since")).to_be_visible()
    assert site.stage.sql("select value from service_state where name = 'pause'")[0].value == {"paused": True}
    visitor.go("/")
    expect(page.locator("#verdict")).to_have_text("stuck")
    expect(page.locator("#limit")).to_have_text("planner")
    visitor.go("/queue")
    page.get_by_role("button", name="Resume planning").click()
    expect(page.get_by_role("button", name="Pause planning")).to_be_visible()
    assert audited(site) == [("resume", "planning"), ("pause", "planning")]


def test_a_worker_shows_its_batches_memory_and_rows_and_is_drained(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/workers")
    worker = page.get_by_role("region", name="Worker gpu-0")
    assert worker.locator("svg.timeline rect.good").count() >= 10
    assert worker.locator("svg.timeline rect.bad").count() == 1
    expect(worker).to_contain_text("Magnus 1.0.0")
    expect(worker.locator("tbody tr")).to_have_count(4)
    expect(worker.locator("tbody tr").first).to_contain_text("6 of about 10")
    # four rows of 3 + 6 tokens, and at most 3 + 15
    expect(worker).to_contain_text("36 of 4,000 tokens")
    expect(worker).to_contain_text("72 tokens")
    worker.get_by_role("button", name="Drain").click()
    expect(worker.get_by_text("draining")).to_be_visible()
    worker.get_by_role("button", name="Resume").click()
    expect(worker.get_by_role("button", name="Drain")).to_be_visible()
    assert audited(site) == [("resume", "worker gpu-0"), ("drain", "worker gpu-0")]


def test_figures_of_workers_that_differ_say_why(visitor: Visitor, site: Site) -> None:
    site.stage.sql("update workers set heartbeat_at = clock_timestamp() - interval '5 min' where name = 'gpu-1'")
    site.stage.worker("gpu-2")
    site.stage.sql("update workers set stopped_at = clock_timestamp() where name = 'gpu-2'")
    sent = site.stage.sql(
        """insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s, assigned_at)
        values ('gpu-0', 'magnus', 1, 5, 5, 1.0, clock_timestamp() - interval '1 min') returning id"""
    )[0][0]
    waits = site.stage.request("resp_sent", limit_tokens=9000, predicted_upper_tokens=9000)
    site.stage.sql("update requests set status = 'in_progress', batch_id = :id where id = :of", id=sent, of=waits)
    page = visitor.go("/workers")
    expect(page.locator("h1")).to_contain_text("1 alive · 1 silent · 1 stopped within a day")
    worker = page.get_by_role("region", name="Worker gpu-0")
    expect(worker).to_contain_text("5 rows, of which the first 4 in begun batches are listed")
    expect(worker).to_contain_text("more than there are: not all rows get as long")
    tile = visitor.go("/").locator(".tile", has_text="Workers")
    expect(tile).to_contain_text("9 rows in their batches, 1 of them not begun: those count as backlog")


def test_predictions_are_compared_and_a_version_is_rolled_back(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/predictions")
    points = page.locator("figure.scatter circle title").all_text_contents()
    assert len(points) == 9  # pairs of a true and a predicted length, by application
    assert sum(int(point.rpartition(", ")[2].split()[0]) for point in points) == busy_service.ANSWERS
    expect(page.locator("#tau")).to_have_text("0.61")
    expect(page.locator("#part-answers tbody tr")).to_have_count(3)
    old = page.locator("#part-versions tr", has_text="length-1")
    old.get_by_role("button", name="Put into service").click()
    expect(page.locator("#part-versions tr", has_text="length-1")).to_contain_text("in service")
    expect(page.locator("#part-versions tr", has_text="length-2")).to_contain_text("superseded")
    assert audited(site) == [("activate", "model length-1")]
    assert site.stage.sql("select version from model_versions where kind = 'length' and active")[0][0] == "length-1"


def test_jobs_are_searched_filtered_and_paged(visitor: Visitor) -> None:
    page = visitor.go("/jobs")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(busy_service.ANSWERS + busy_service.WAITING + 8 + 1 - 50)
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    visitor.go("/jobs")
    page.get_by_label("Id").fill("ffffff")
    page.get_by_role("button", name="Show").click()
    page.locator("td a.id").click()
    expect(page.locator("h1")).to_contain_text(f"resp_{'f' * 32}")
    visitor.go("/jobs?order=slowest&tenant=acme")
    expect(page.locator("tbody tr")).to_have_count(50)
    visitor.go("/jobs?application=nothing")
    expect(page.get_by_text("No job matches.")).to_be_visible()


def test_all_that_match_are_cancelled_with_their_number_said_before(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/jobs?application=chat&status=queued")
    page.get_by_role("link", name="Cancel all that wait or run").click()
    expect(page.locator("h1")).to_have_text("Cancel 3 jobs?")
    assert site.stage.sql("select count(*) from requests where status = 'cancelled'")[0][0] == 0
    page.get_by_role("button", name="Cancel 3 jobs").click()
    expect(page.locator("h1")).to_have_text("Cancelled: 3 jobs")
    rows = site.stage.sql("select application from requests where status = 'cancelled'")
    assert [row.application for row in rows] == ["chat"] * 3
    assert audited(site) == [("cancel jobs", "all that match")]


def test_a_failed_job_is_submitted_again_as_a_new_one(visitor: Visitor, site: Site) -> None:
    page = visitor.go(f"/jobs/resp_{'f' * 32}")
    expect(page.get_by_text("out_of_memory: too long")).to_be_visible()
    page.get_by_role("button", name="Submit again").click()
    expect(page.locator("h1")).to_contain_text("queued")
    made = page.url.rpartition("/")[2]
    assert made != f"resp_{'f' * 32}"
    assert site.stage.requests("status")[made] == "queued"
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_contain_text("cancelled")
    assert audited(site)[-1] == ("retry", f"job resp_{'f' * 32}")


def test_a_job_shows_its_life_its_mates_and_its_texts_when_asked(visitor: Visitor, site: Site) -> None:
    job = f"resp_{1:032x}"
    page = visitor.go(f"/jobs/{job}")
    assert page.locator("svg.timeline rect:not(.track)").count() >= 1
    for step in ("Accepted", "Predicted", "Batched", "Served", "Stored"):
        expect(page.locator(".life")).to_contain_text(step)
    expect(page.get_by_text("eins zwei drei")).to_have_count(0)
    page.get_by_role("button", name="Show prompt and answer").click()
    expect(page.get_by_text("eins zwei drei")).to_be_visible()
    expect(page.get_by_text("one two three")).to_be_visible()
    assert audited(site) == [("read texts", f"job {job}")]


def test_hostile_texts_are_shown_as_text(visitor: Visitor, site: Site) -> None:
    evil = busy_service.EVIL
    job = site.stage.request(f"resp_{'d' * 32}", input=evil, instructions=evil)
    page = visitor.go(f"/jobs/{job}")
    page.get_by_role("button", name="Show prompt and answer").click()
    expect(page.get_by_text("<img src=x", exact=False)).to_have_count(2)
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "owned"


def test_a_batch_is_paused_given_another_window_and_cancelled(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/batches")
    expect(page.locator("tbody tr")).to_contain_text("20,002 of 50,000 ended")
    page.get_by_role("link", name="bbbbbbbb").click()
    expect(page.locator("#part-errors tbody tr")).to_contain_text("missing")
    for button, shown in (("Pause", "paused"), ("Resume", "in progress"), ("Window 7d", "window of 7d")):
        page.get_by_role("button", name=button).click()
        expect(page.locator("main")).to_contain_text(shown)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_contain_text("cancelling")
    assert [action for action, *_ in audited(site)] == ["cancel", "window", "resume", "pause"]


def test_a_webhook_sends_again_what_was_given_up(visitor: Visitor, site: Site) -> None:
    page = visitor.go("/webhooks")
    expect(page.locator("tbody tr")).to_contain_text("fails 3 attempts in a row")
    page.get_by_role("link", name="https://example.com/").click()
    expect(page.locator("tbody tr", has_text="given up")).to_have_count(3)
    page.get_by_role("button", name="Send again").first.click()
    expect(page.locator("tbody tr", has_text="on its way")).to_have_count(1)
    page.get_by_role("button", name="Send what was given up again").click()
    expect(page.locator("tbody tr", has_text="on its way")).to_have_count(3)
    assert len(audited(site)) == 2


def test_usage_is_summed_by_tenant_and_the_audit_lists_what_was_done(visitor: Visitor) -> None:
    page = visitor.go("/usage?days=7")
    expect(page.locator("tbody tr")).to_contain_text("720")
    visitor.go("/queue")
    page.get_by_role("button", name="Pause planning").click()
    visitor.go("/audit")
    expect(page.locator("tbody tr").first).to_contain_text("the dashboard's password")
    expect(page.locator("tbody tr").first).to_contain_text("pause")
