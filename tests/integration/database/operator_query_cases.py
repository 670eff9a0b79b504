"""The cases of what the dashboard and operators ask, as `query_cases` has those of the other modules."""

from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection, text

from models import ended_requests, planner_state, schema_upgrade
from models.connections import connection_slots, installation
from models.connections.sql import database_clock
from models.operations import application_figures, minute_history, operator_overview, process_heartbeats, window_stats
from models.planning import response_time_estimate, served_work
from models.upkeep import invariants, retention
from tests.integration.database.full_database import BATCHES, ROWS_A_BATCH
from tests.integration.database.query_cases import A_MINUTE, COUNTED, DAY, FEW, HOUR, OPEN, Case, on_session


def a_window(since_ago_s: float, until_ago_s: float) -> Callable[[Connection], object]:
    def call(connection: Connection) -> object:
        now = database_clock(connection).timestamp()
        return on_session(window_stats.window_stats, now - since_ago_s, now - until_ago_s)(connection)

    return call


def traces_of_the_last_minute(connection: Connection) -> object:
    at = str(connection.execute(text("select clock_timestamp() - interval '60 s'")).scalar_one())
    planner_state.write_service_state(connection, "traced", {"at": at, "id": ""})
    traced = ended_requests.read_traced(connection, 500)
    if traced is not None:
        ended_requests.move_mark(connection, traced)
    return traced


def served_work_of(window_s: float) -> Callable[[Connection], object]:
    def call(connection: Connection) -> object:
        with suppress(served_work.NothingToPlay):  # no worker there has learned its costs
            return served_work.measured_work(connection, window_s, 10.0)
        return None

    return call


# the newest that wait, and all in progress, are read and then sampled
UNANSWERED = 2 * (response_time_estimate.NEWEST_UNANSWERED + BATCHES * ROWS_A_BATCH)
OPERATOR_CASES = [
    Case("minute_history.close_minutes", on_session(minute_history.close_minutes), 5 * 5 * A_MINUTE),
    Case("minute_history.ended_last_hour", on_session(minute_history.ended_last_hour), 60 + 6 * A_MINUTE),
    Case("minute_history.ended_totals", on_session(minute_history.ended_totals)),
    Case("minute_history.fold_totals", on_session(minute_history.fold_totals)),
    Case("operator_overview.request_counts", on_session(operator_overview.request_counts), 2 * COUNTED),
    Case("operator_overview.fleet_findings", on_session(operator_overview.fleet_findings, (), 10.0), OPEN),
    Case("operator_overview.planner_findings", on_session(operator_overview.planner_findings)),
    # the 200 newest answers and the batch of each
    Case("operator_overview.what_is_missing", on_session(operator_overview.what_is_missing, 10.0), 2 * 200 + FEW),
    Case("application_figures.applications", on_session(application_figures.applications), 5000 + FEW),
    Case("invariants.violations", lambda c: list(invariants.violations(c, 20.0)), OPEN),
    Case(
        "response_time_estimate.read_newest_answers", on_session(response_time_estimate.read_newest_answers, 0.0), 250
    ),
    Case("response_time_estimate.read_unanswered", on_session(response_time_estimate.read_unanswered), UNANSWERED),
    Case(
        "response_time_estimate.read_response_times",
        lambda c: on_session(response_time_estimate.read_response_times, response_time_estimate.RecentAnswers())(c),
        UNANSWERED,
    ),
    Case("window_stats.window_stats", on_session(window_stats.window_stats), COUNTED + OPEN, "of the last minute"),
    Case("window_stats.window_stats", a_window(DAY, DAY - 60), COUNTED + OPEN, "of a minute long ago"),
    Case("ended_requests.read_traced", traces_of_the_last_minute, 2 * 500 + A_MINUTE + FEW),
    Case("ended_requests.move_mark", traces_of_the_last_minute, 2 * 500 + A_MINUTE + FEW),
    Case("served_work.measured_work", served_work_of(60.0), served_work.MOST_REQUESTS + FEW),
    Case("process_heartbeats.write", lambda c: process_heartbeats.write(c, "beat", "host:1", 0.0)),
    Case("process_heartbeats.forget", lambda c: process_heartbeats.forget(c, "beat", "host:1")),
    Case("process_heartbeats.processes", process_heartbeats.processes),
    Case("schema_upgrade.server_version", schema_upgrade.server_version),
    Case("schema_upgrade.hazards", schema_upgrade.hazards),
    Case("schema_upgrade.unreadable_tables", schema_upgrade.unreadable_tables, 1000),  # of the catalog
    Case("connection_slots.connection_shortage", lambda c: connection_slots.connection_shortage(c, {"web": 1})),
    Case("installation.read_installation", installation.read_installation),
    Case("retention.delete_old_batches", lambda c: retention.delete_old_batches(c, HOUR, 500), 2 * 500 + FEW),
    Case("retention.delete_old_workers", lambda c: retention.delete_old_workers(c, DAY)),
    Case("retention.delete_old_heartbeats", lambda c: retention.delete_old_heartbeats(c, HOUR)),
    Case("retention.delete_superseded_versions", retention.delete_superseded_versions),
]
