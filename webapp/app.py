"""The web process: API and dashboard in one Flask app, made by `create_app` for gunicorn and for tests."""

from functools import partial
from typing import Any

import structlog
from apiflask import APIFlask
from flask import Response, request

import json_logs
from inference.prompt_format import load_prompt_format
from models import client_requests
from models.queue_position import QueueSnapshot, read_queue_snapshot
from models.response_time_estimate import ResponseTimeEstimate, read_response_times
from models.session import make_engine, make_sessions
from settings import Settings, read_settings
from webapp import auth, chat_api, client_errors, dashboard, health, models_api, openapi_document, stats_api
from webapp import responses_api as responses_api
from webapp.app_context import AppContext
from webapp.dashboard_overview import Overview, read_overview
from webapp.prompt_limits import PromptLimits
from webapp.rate_limits import RateLimit
from webapp.strict_json import ApiRequest, StrictJson
from webapp.ttl_cache import TtlCache
from webapp.waiting_calls import WaitingCalls

log = structlog.get_logger()

STATEMENT_TIMEOUT_S = 10.0
CONNECTIONS = 12  # each held for a statement or two, so far fewer than threads
MOST_WAITING = 24  # of gunicorn's threads: the rest stay free for calls that do not wait

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class NoDatabase(Exception):
    """The web process was started by itself, without MAGNUS_DATABASE_URL; `magnus up` starts everything."""

    def __init__(self) -> None:
        super().__init__(NoDatabase.__doc__)


class MagnusApp(APIFlask):
    """APIFlask that reads JSON strictly and logs what nobody expected."""

    request_class = ApiRequest
    json_provider_class = StrictJson

    def log_exception(self, exc_info: Any) -> None:
        """Log an exception that becomes a 500."""
        log.error("unexpected", method=request.method, path=request.path, exc_info=exc_info)


def create_app(settings: Settings | None = None) -> APIFlask:
    """The app; without settings those of the environment. Raises NoDatabase, UnreadableTokenizer, UnknownSetting."""
    settings = settings or read_settings()
    if settings.database_url is None:
        raise NoDatabase
    json_logs.configure(settings.log_level)
    app = MagnusApp(__name__, title="Magnus", version="0.1.0", docs_path=None)
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes,
        OPENAPI_VERSION="3.1.0",
        DESCRIPTION="A durable job service for LLM requests: OpenAI's Responses API, answered in the best order.",
        VALIDATION_ERROR_STATUS_CODE=400,
        SECURITY_SCHEMES={"ApiKey": {"type": "http", "scheme": "bearer"}},
    )
    made = make_context(settings, settings.database_url)
    app.extensions["magnus"] = made
    health.observe(app, made)
    app.before_request(auth.require_key)
    client_errors.register(app)
    apis = [responses_api.api, chat_api.api, models_api.api, stats_api.api]
    for blueprint in (*apis, health.pages, dashboard.pages):
        app.register_blueprint(blueprint)
    app.after_request(harden)
    app.spec_processor(partial(openapi_document.describe, model=made.served.name))
    return app


def make_context(settings: Settings, database_url: str) -> AppContext:
    """What the views share."""
    engine = make_engine(
        database_url,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
        pool_size=CONNECTIONS,
        name="magnus web",
        autocommit=True,  # each call is one statement, or several that need not agree
    )
    sessions = make_sessions(engine)
    prompt_format = load_prompt_format(settings.model)

    def read_room() -> QueueSnapshot | None:
        with sessions() as session:
            return read_queue_snapshot(session)

    def expectation() -> ResponseTimeEstimate:
        with sessions() as session:
            return read_response_times(session)

    def overview(hours: int) -> Overview:
        with sessions() as session:
            return read_overview(session, hours, settings.lease_s)

    def finished(ids: Any) -> set[str]:
        with sessions() as session:
            return client_requests.finished(session, ids)

    password = settings.dashboard_password
    return AppContext(
        sessions=sessions,
        served=PromptLimits(
            settings.model_name or prompt_format.name,
            prompt_format,
            settings.max_prompt_tokens,
            settings.max_output_tokens,
        ),
        rooms=TtlCache(read_room, keep_s=0.5),
        expectations=TtlCache(expectation, keep_s=1.0),
        overviews={hours: TtlCache(partial(overview, int(hours)), keep_s=1.0) for hours in dashboard.RANGES},
        waiters=WaitingCalls(finished, most=MOST_WAITING),
        limit=RateLimit(settings.rate_limit),
        wait_s=settings.wait_s,
        dashboard_password=password.get_secret_value() if password else None,
        worker_alive_s=settings.lease_s,
        close=engine.dispose,
    )


def harden(response: Response) -> Response:
    """No page of ours loads or runs anything that is not ours, and no answer is kept by a cache."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response
