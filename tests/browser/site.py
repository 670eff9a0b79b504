"""The running dashboard, and a browser window that records console errors, script errors and foreign requests."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, Page, Request

from tests.integration.database_stage import Stage

PASSWORD = "open sesame, please"
REFRESHED_WITHIN_MS = 6000  # an open page fetches itself every 5 s


@dataclass
class Site:
    """Where the dashboard is, what its database holds, how to stop it, and how to make it read its figures anew."""

    url: str
    stage: Stage
    stop: Callable[[], None]
    forget: Callable[[], None]

    def refresh(self, page: Page) -> None:
        """Let an open page, whose clock is Playwright's, fetch itself again, with figures that are read for it."""
        self.forget()
        page.clock.fast_forward(REFRESHED_WITHIN_MS)

    def planner(self, policy: str = "magnus", **queue: Any) -> None:
        """Write a fresh snapshot of the planner."""
        value = {"version": 3, "decisions": {"epoch": 1, "policy": policy, "last_s": 0.001}, "queue": queue}
        self.stage.sql(
            """insert into service_state (name, value) values ('planner', cast(:value as jsonb))
            on conflict (name) do update set value = excluded.value, updated_at = clock_timestamp()""",
            value=json.dumps(value),
        )

    def answer(self, n: int, **columns: Any) -> str:
        """Inserts an answered request; the higher its number, the later it arrived and ended."""
        made = self.stage.request(f"resp_{n:032x}", input="eins zwei drei", **columns)
        self.stage.sql(
            """update requests set status = 'completed', output_text = coalesce(output_text, 'one two three'),
                output_tokens = 12, finish_reason = 'eos', attempts = 1,
                arrived_at = clock_timestamp() - make_interval(secs => 100 - :n * 0.1),
                finished_at = clock_timestamp() - make_interval(secs => 50 - :n * 0.1) where id = :id""",
            id=made,
            n=n,
        )
        return made


class Visitor:
    """A browser window on the dashboard."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.complaints: list[str] = []
        page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('CSP', e.violatedDirective, e.blockedURI))"
        )
        page.on("console", self._on_console)
        page.on("pageerror", self._on_page_error)
        page.on("request", self._on_request)

    def go(self, path: str = "/") -> Page:
        """Open one of the dashboard's pages."""
        self.page.goto(self.site.url + path)
        return self.page

    def sign_in(self, secret: str) -> None:
        """Sign in with a key or the password."""
        self.go("/sign-in?next=/sign-in")  # a page that reads nothing: other pages keep what they read for a while
        self.page.get_by_label("API key or the dashboard's password").fill(secret)
        self.page.get_by_role("button", name="Sign in").click()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_page_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.site.url, "data:", "about:")):
            self.complaints.append(f"asked {request.url}")
