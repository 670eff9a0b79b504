"""The web process: API and dashboard in one Flask app, made by `create_app` for gunicorn and for tests."""

import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from threading import Semaphore
from typing import Any

import structlog
from apiflask import APIFlask
from flask import Response, g, request
from pydantic import ValidationError
from sqlalchemy.exc import NotSupportedError, OperationalError

import setting_formats as formats
from inference.engine_errors import UnreadableModel
from models import ended_requests, new_requests, notifications
from models.bulk.bulk_outlook import read_bulk_outlook
from models.connections.database_errors import explain
from models.connections.held_pool import PoolWatch
from models.connections.installation import read_installation
from models.connections.session import in_connection, in_session, make_engine, make_sessions
from models.notifications import ENDED, ERRORS, Notifications
from models.operations.promise_book import read_book, withheld_levels
from models.planning.live_fleet import served_adapters
from models.planning.queue_snapshot import read_queue_snapshot
from models.planning.response_time_estimate import RecentAnswers, read_response_times
from models.tenants import api_keys, tenant_limits
from models.tenants.budgets import tier_prices
from models.tenants.tenant_limits import TenantBacklog
from off_peak_hours import OffPeakHours
from processes import json_logs
from processes.listening import Channel
from processes.ttl_cache import KeyedTtlCache, TtlCache
from protocol.limits.prompt_limits import prompt_limits_of
from setting_mistakes import end_with, problems_of
from settings import VERSION, Settings, UnknownSetting, read_settings
from webapp.context import auth
from webapp.context.app_context import AppContext
from webapp.dashboard import dashboard_pages
from webapp.limits.backlog_limits import BacklogLimit
from webapp.limits.quote_terms import QuoteTerms
from webapp.limits.rate_limits import RateLimit
from webapp.limits.upload_limits import UploadLimits
from webapp.routes import (
    batches_api,
    chat_api,
    files_api,
    input_api,
    messages_api,
    models_api,
    monitoring,
    openapi_document,
    quotes_api,
    responses_api,
    stats_api,
    texts_api,
    tokens_api,
    usage_api,
    webhooks_api,
)
from webapp.transport import clients_addresses, cross_origin, error_answers, request_bodies
from webapp.transport.error_answers import speaks_anthropic
from webapp.transport.request_bodies import ApiRequest, StrictJson
from webapp.waiting.grouped_inserts import GroupedInserts
from webapp.waiting.notices import Announcer, EndedNotices
from webapp.waiting.patience import AT_ONCE, in_turns, take_turn
from webapp.waiting.token_feed import TokenFeed
from webapp.waiting.waiting_calls import WaitingCalls

log = structlog.get_logger()

APP_LOAD_ERROR = 4  # the exit status of a worker that makes gunicorn end instead of starting another worker

# Longest time for a statement; the API's own take milliseconds. While Postgres is frozen, calls are answered with 503
# within 4 s: once a statement and then a trivial one have timed out, every call that waits for a connection fails at
# once. Not tuned.
STATEMENT_TIMEOUT_S = 2.0
# Longest wait for a connection. If a thousand calls come at once, each waits for the statements of the others, which
# takes several seconds on a loaded machine. A frozen Postgres is noticed by STATEMENT_TIMEOUT_S, long before.
CONNECTION_WITHIN_S = 30.0
CONNECTIONS = 12  # a call holds one for a statement or two, and a process uses one core; not tuned
# Longest time for which a revoked or expired key is still accepted, and a tenant's old limit holds (docs/security.md).
# A longer time would save little: a key that sends 100 requests a second is looked up once instead of 100 times.
KEYS_TTL_S = 1.0
SNAPSHOT_TTL_S = 0.5  # the planner writes its snapshot at most twice a second
PRIORITY_REQUESTS = 10  # most requests of a tenant in `priority`, unless `magnus tenant set` says otherwise; not tuned
PROMISES_TTL_S = 10.0  # promises are settled by the ticks of upkeep, 10 s apart
RESPONSE_TIMES_TTL_S = 1.0  # a second changes few of the 200 answers that they are estimated from; not tuned

# A browser loads and runs only what this service serves, no other site can embed its pages or read its answers, and no
# cache keeps them.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class NoDatabase(Exception):
    """The web process was started by itself, without MAGNUS_DATABASE_URL; `magnus up` starts everything."""


class MagnusApp(APIFlask):
    """APIFlask that reads JSON strictly and logs unexpected exceptions."""

    request_class = ApiRequest
    json_provider_class = StrictJson

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function: none of ours is asynchronous, and Flask would inspect a dozen of them at every call."""
        return func

    def log_exception(self, exc_info: Any) -> None:
        """Logs an exception that is answered with status 500."""
        log.error("unexpected", method=request.method, path=request.path, exc_info=exc_info)


def create_app(settings: Settings | None = None) -> APIFlask:
    """Returns the app; raises NoDatabase, UnreadableModel. Without given settings it ends the process instead."""
    if settings is None:
        try:
            app = create_app(read_settings())
            with suppress(OperationalError):  # unlike a database that can never be used, it may be away only now
                app.extensions["magnus"].database.connect().close()
            return app
        except (UnknownSetting, ValidationError) as error:
            end_with(*problems_of(error), status=APP_LOAD_ERROR)
        except (NoDatabase, UnreadableModel) as error:
            end_with(str(error), status=APP_LOAD_ERROR)
        except NotSupportedError as error:
            end_with(explain(error), status=APP_LOAD_ERROR)
    if settings.database_url is None:
        raise NoDatabase(NoDatabase.__doc__)
    json_logs.configure(settings.log_level)
    app = MagnusApp(
        __name__,
        title="Magnus",
        version=VERSION,
        docs_path=None,
        static_folder="dashboard/static",
        template_folder="dashboard/templates",
    )
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes,  # larger bodies are refused with 413, before they are parsed
        OPENAPI_VERSION="3.1.0",
        DESCRIPTION="A durable job service for LLM requests: OpenAI's Responses API, answered in the best order.",
        VALIDATION_ERROR_STATUS_CODE=400,
        SECURITY_SCHEMES={"ApiKey": {"type": "http", "scheme": "bearer"}},
    )
    context = make_context(settings, settings.database_url)
    app.url_map.strict_slashes = False  # a slash at the end of an address makes no difference
    app.extensions["magnus"] = context
    app.wsgi_app = clients_addresses.translated(in_turns(app.wsgi_app))  # type: ignore[assignment, method-assign]
    app.before_request(name_request)
    monitoring.register_metrics(app, context)
    cross_origin.register(app, settings.cors_origin_list)
    app.before_request(auth.require_api_key)
    app.before_request(request_bodies.unfold_body)
    app.before_request(take_turn)
    app.before_request(auth.take_turn_of_tenant)
    error_answers.register(app)
    answers = (responses_api, input_api, chat_api, messages_api, texts_api, models_api, tokens_api)
    for routes in (*answers, stats_api, files_api, batches_api, usage_api, quotes_api, webhooks_api):
        app.register_blueprint(routes.api)
    app.register_blueprint(monitoring.health_pages)
    dashboard_pages.register(app, settings, context.sessions)
    app.after_request(auth.add_tenant_headers)
    app.after_request(add_headers)
    app.teardown_request(forget_request_name)
    app.spec_processor(partial(openapi_document.describe, model=context.prompt_limits.model_name))
    return app


def make_context(settings: Settings, database_url: str) -> AppContext:
    """Returns the context of an app with these settings; raises UnreadableModel."""
    engine = make_engine(
        database_url,
        statement_timeout_s=STATEMENT_TIMEOUT_S,
        answer_within_s=STATEMENT_TIMEOUT_S,
        pool_timeout_s=CONNECTION_WITHIN_S,
        pool_size=CONNECTIONS,
        name="magnus web",
        autocommit=True,  # a call is one statement, or several that need no common snapshot
    )
    sessions = make_sessions(engine)

    listening = make_engine(database_url, pool_size=1, name="magnus web listens")
    announcer = Announcer(in_connection(engine, notifications.notify_submitted))
    queue_snapshots = TtlCache(in_session(sessions, read_queue_snapshot), SNAPSHOT_TTL_S)
    backlog_limit = BacklogLimit(
        in_session(sessions, tenant_limits.read_backlog),
        TenantBacklog(settings.tenant_queued_requests, settings.tenant_queued_tokens, settings.tenant_queued_bytes),
        snapshot=queue_snapshots.get,
    )

    waiting_calls = WaitingCalls(
        in_session(sessions, ended_requests.ended),
        EndedNotices(Channel("ended requests", partial(Notifications, listening, ENDED, awaited=True), ERRORS)),
        max_calls=settings.waiting_calls,
        max_calls_of_tenant=settings.tenant_waiting_calls,
    )

    installation = in_connection(engine, read_installation)
    token_feed = TokenFeed(settings.redis_url, installation)

    def close() -> None:
        announcer.close()
        backlog_limit.close()
        waiting_calls.close()
        token_feed.close()
        listening.dispose()
        engine.dispose()

    prompt_limits = prompt_limits_of(settings, in_session(sessions, served_adapters))
    return AppContext(
        database=engine,
        pool_watch=PoolWatch(engine),
        sessions=sessions,
        callers=KeyedTtlCache(in_connection(engine, api_keys.find_by_digest), KEYS_TTL_S),
        prompt_limits=prompt_limits,
        upload_limits=UploadLimits(
            file_bytes=settings.max_file_bytes,
            line_bytes=settings.max_body_bytes,
            tenant_bytes=settings.tenant_file_bytes,
        ),
        queue_snapshot=queue_snapshots,
        response_times=TtlCache(
            in_session(sessions, partial(read_response_times, answers=RecentAnswers())), RESPONSE_TIMES_TTL_S
        ),
        promise_book=TtlCache(in_session(sessions, partial(read_book, tenant=None)), PROMISES_TTL_S),
        withheld_levels=TtlCache(in_session(sessions, withheld_levels), PROMISES_TTL_S),
        bulk_outlook=TtlCache(
            in_session(sessions, partial(read_bulk_outlook, model=prompt_limits.model_name, alive_s=settings.lease_s)),
            RESPONSE_TIMES_TTL_S,
        ),
        tenant_turns=defaultdict(partial(Semaphore, AT_ONCE)),
        waiting_calls=waiting_calls,
        token_feed=token_feed,
        rate_limit=RateLimit(settings.rate_limit, in_connection(engine, tenant_limits.count_requests)),
        backlog_limit=backlog_limit,
        quotes=QuoteTerms(
            tier_prices(formats.prices_in(settings.prices) if settings.prices else {}),
            settings.quote_s,
            settings.min_deadline_chance,
            settings.public_promises,
            cache(lambda: installation().secret),
        ),
        announcer=announcer,
        inserts=GroupedInserts(in_connection(engine, new_requests.insert)),
        priority_requests=PRIORITY_REQUESTS,
        off_peak=None if settings.off_peak is None else OffPeakHours.parse(settings.off_peak),
        wait_s=settings.wait_s,
        worker_alive_s=settings.lease_s,
        private_webhooks=settings.private_webhooks,
        close=close,
    )


def name_request() -> None:
    """Draws the id of this HTTP request for the log; clients read it in a header of the answer."""
    g.request_name = f"req_{uuid.uuid4().hex}"
    structlog.contextvars.bind_contextvars(http_request=g.request_name)


def forget_request_name(error: BaseException | None) -> None:
    """Removes the id from the log context, since what this thread logs later is not about this request."""
    structlog.contextvars.unbind_contextvars("http_request")


def add_headers(response: Response) -> Response:
    """Adds the id of this HTTP request, and each of SECURITY_HEADERS that the answer lacks."""
    response.headers.add("x-request-id", g.request_name)
    if speaks_anthropic():
        response.headers.add("request-id", g.request_name)
    given = {name.lower() for name, _ in response.headers}  # once: `setdefault` would read all headers each time
    for name, value in SECURITY_HEADERS.items():
        if name.lower() not in given:
            response.headers.add(name, value)
    return response
