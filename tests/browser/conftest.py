"""A real browser on the real dashboard: the app on a port of its own, Postgres behind it, Chromium in front."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, sync_playwright
from pydantic import SecretStr
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from models.connections.session import make_engine
from settings import Settings
from tests.browser import busy_service
from tests.browser.chromium import FLAGS, NoChromium, find
from tests.browser.site import PASSWORD, Site, Visitor
from tests.integration.database_stage import Stage
from webapp.app import create_app

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for each module; without one its tests fail and say what to install.

    Playwright's event loop runs in this thread until Playwright is stopped. With one Chromium for the whole session, a
    later test of the same process could not run a loop of its own.
    """
    try:
        path = find()
    except NoChromium as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class PatientForSeconds(WSGIRequestHandler):
    """Gives up on a connection that a browser opened ahead and sends nothing on."""

    timeout = 5

    def connection_dropped(self, error: BaseException, environ: "WSGIEnvironment | None" = None) -> None:
        """Close the answer of a browser that went away; werkzeug leaves its file open, and gunicorn does not."""
        if environ is not None:
            environ["close answer"]()


def remembering_answers(app: "WSGIApplication") -> "WSGIApplication":
    """The app, whose answers can be closed by who has their requests' environments."""

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        answered = app(environ, start_response)
        environ["close answer"] = getattr(answered, "close", lambda: None)
        return answered

    return answer


@contextmanager
def running_site(settings: Settings, port: int = 0) -> Iterator[Site]:
    """The dashboard with these settings, on an empty database."""
    app = create_app(settings)
    server = ThreadedWSGIServer("127.0.0.1", port, remembering_answers(app), PatientForSeconds)
    server.daemon_threads = False  # `server_close` waits for requests that still use the database
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    engine = make_engine(str(settings.database_url))
    forget = app.extensions["magnus_dashboard"].reads.forget
    yield Site(f"http://127.0.0.1:{server.server_port}", Stage(engine), server.shutdown, forget)
    server.shutdown()
    thread.join()
    server.server_close()
    app.extensions["magnus"].close()
    engine.dispose()


def dashboard_on(database_url: str) -> Settings:
    """The settings of a dashboard on this database, with PASSWORD."""
    return Settings(database_url=database_url, dashboard_password=SecretStr(PASSWORD), log_level="error")


@pytest.fixture
def site(database_url: str) -> Iterator[Site]:
    """The dashboard on an empty database."""
    with running_site(dashboard_on(database_url)) as site:
        yield site


@pytest.fixture(scope="module")
def busy(module_database_url: str) -> Iterator[Site]:
    """The dashboard with a busy service behind it, for all tests of a module that only look at it."""
    with running_site(dashboard_on(module_database_url)) as site:
        busy_service.fill(site)
        yield site


def visiting(browser: Browser, site: Site) -> Iterator[Visitor]:
    """A signed-in browser window; any error or foreign request that it records fails the test at its end."""
    context = browser.new_context()
    visitor = Visitor(context.new_page(), site)
    visitor.sign_in(PASSWORD)
    yield visitor
    complaints = visitor.complaints
    context.close()
    assert complaints == []


@pytest.fixture
def visitor(browser: Browser, site: Site) -> Iterator[Visitor]:
    """A window on the test's own dashboard."""
    yield from visiting(browser, site)


@pytest.fixture
def onlooker(browser: Browser, busy: Site) -> Iterator[Visitor]:
    """A window on the busy dashboard of the module."""
    yield from visiting(browser, busy)
