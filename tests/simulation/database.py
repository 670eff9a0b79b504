"""The simulation's database: the product's newest schema with a clock of its own, and triggers that watch requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from sqlalchemy import make_url

from cli.hosting.embedded_servers import create_database, running_server
from models.request_life import LIFE
from models.schema_upgrade import upgrade
from tests.quick_postgres import quick_postgres
from tests.simulation.actors import BEGINS_AT

NAME = "simulated"
CLOCK_FILE = "simulated_clock"  # in the server's data directory; its size is the clock's time in microseconds
CLOCK = "".join(
    f"""
    create function {name}() returns timestamptz language sql volatile as
        $$ select pg_catalog.to_timestamp({BEGINS_AT} + (pg_catalog.pg_stat_file('{CLOCK_FILE}')).size / 1e6) $$;
    """
    for name in ("clock_timestamp", "statement_timestamp", "now")
)
CLOCK += "create function random() returns float8 language sql immutable as $$ select 0.5::float8 $$;"
PAIRS = ", ".join(
    f"('{before.value}', '{after.value}')"
    for before, events in LIFE.items()
    for after in {*events.values(), *([] if before.final else [before])}
)
WATCH = f"""
    create table broken (what text);
    create table claimed (request text, batch bigint);
    create index on claimed (request);
    create function watch_requests() returns trigger language plpgsql as $$
    declare broken text := case
        when (old.status, new.status) not in (values {PAIRS}) and (old.status <> new.status
                or new.output_text is distinct from old.output_text or new.finished_at is distinct from old.finished_at)
            then 'left its life: from ' || old.status
        when new.status in ('completed', 'incomplete') and old.status = 'in_progress' and not exists (
                select from batches where id = new.batch_id and status = 'running')
            then 'was answered for a batch that does not run'
        when new.status in ('completed', 'incomplete') and new.cancel_requested_at is not null
            then 'was answered although it was cancelled'
        when old.status not in ('queued', 'in_progress') and to_jsonb(new) - array['idempotency_key', 'shared']
                <> to_jsonb(old) - array['idempotency_key', 'shared']
            then 'changed after its end'
        when new.attempts < (new.status in ('completed', 'incomplete') and new.twin_of is null)::int
            then 'has ' || new.attempts || ' attempts'
        when old.status = 'queued' and new.status = 'in_progress' and new.held
            then 'runs although it is held'
        when old.status = 'queued' and new.status = 'in_progress' and old.planner_epoch = 0
            then 'runs although it has changed since the planner read it'
        when old.status = 'in_progress' and new.status = 'in_progress' and old.batch_id <> new.batch_id
            then 'changed its batch while it ran'
        when old.status = 'in_progress' and new.status = 'cancelled' and old.cancel_requested_at is null
            then 'was stopped before its worker knew'
        when new.status = 'queued' and new.cancel_requested_at is not null
            then 'waits although it was cancelled'
        end;
    begin
        insert into broken select new.id || ', ' || new.status || ', ' || broken where broken is not null;
        insert into claimed select new.id, new.batch_id where old.status = 'queued' and new.status = 'in_progress';
        return null;
    end $$;
    create function watch_batches() returns trigger language plpgsql as $$
    begin
        insert into broken select 'batch ' || new.id || ' was ' || old.status || ', is ' || new.status
        where old.status not in ('assigned', 'running') and (old.status <> new.status or new.lease_until is not null)
            or old.status = 'running' and (new.status = 'assigned' or new.fence > old.fence);
        return null;
    end $$;
    create function watch_leads() returns trigger language plpgsql as $$
    begin
        insert into broken select new.holder || ' took the lead of ' || old.holder
        where new.holder <> old.holder and (old.expires_at > clock_timestamp() or new.fence = old.fence);
        return null;
    end $$;
    create function watch_lines() returns trigger language plpgsql as $$
    begin
        insert into broken select 'line ' || new.line || ' of ' || id || ' was read at the wrong time' from bulk_jobs
        where id = new.job_id and (paused_at is not null or status not in ('validating', 'in_progress')
            or new.line < next_line);
        return null;
    end $$;
    create trigger watch after insert on bulk_lines for each row execute function watch_lines();
    create trigger watch after update on leaderships for each row execute function watch_leads();
    create trigger watch after update on batches for each row execute function watch_batches();
    create trigger watch after update on requests for each row execute function watch_requests();
"""


@contextmanager
def own_server() -> Iterator[str]:
    """A Postgres for simulations alone; yields the URL of its database with the product's schema."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="magnus-simulation-", dir=memory if memory.exists() else None) as directory:
        Path(directory).chmod(0o711)
        server = quick_postgres(Path(directory) / "postgres")
        with running_server(server, Path(directory) / "postgres.log") as url:
            yield prepare(url)


def prepare(url: str) -> str:
    """Makes the database with its clock, the product's schema and the triggers; returns the database's URL."""
    url = make_url(url).set(database=NAME).render_as_string(hide_password=False)
    create_database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        (directory,) = connection.execute("show data_directory").fetchone()  # type: ignore[misc]
        (Path(directory) / CLOCK_FILE).touch()
        connection.execute(CLOCK)
        for setting in (
            f"alter database {NAME} set search_path = public, pg_catalog",
            f"alter database {NAME} set deadlock_timeout = '1ms'",
            f"alter database {NAME} set plan_cache_mode = 'force_generic_plan'",
            "alter system set autovacuum = off",
            "select pg_reload_conf()",
        ):
            connection.execute(setting)
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(WATCH)
    return url


EMPTY = """
    do $$ begin execute (
        select 'alter sequence planner_epochs restart; truncate ' || string_agg(quote_ident(tablename), ', ')
            || ' restart identity' from pg_tables where schemaname = 'public' and tablename <> 'alembic_version'
    ); end $$
"""
