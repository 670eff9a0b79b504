"""The simulation's database: the product's newest schema with a clock of its own, and triggers that watch requests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from sqlalchemy import make_url

from cli.hosting.embedded_servers import create_database, embedded_postgres, running_server
from models.request_life import LIFE
from models.schema_upgrade import upgrade

NAME = "simulated"
CLOCK = """
    create sequence simulated_clock;
    select setval('simulated_clock', 1767225600000000);
    create function clock_timestamp() returns timestamptz language sql volatile as
        $$ select pg_catalog.to_timestamp(pg_catalog.pg_sequence_last_value('public.simulated_clock')::float8 / 1e6) $$;
    create function statement_timestamp() returns timestamptz language sql volatile as
        $$ select pg_catalog.to_timestamp(pg_catalog.pg_sequence_last_value('public.simulated_clock')::float8 / 1e6) $$;
    create function now() returns timestamptz language sql volatile as
        $$ select pg_catalog.to_timestamp(pg_catalog.pg_sequence_last_value('public.simulated_clock')::float8 / 1e6) $$;
    create function random() returns float8 language sql immutable as $$ select 0.5::float8 $$;
"""
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
    begin
        if (old.status, new.status) not in (values {PAIRS}) and (old.status <> new.status
                or new.output_text is distinct from old.output_text or new.finished_at is distinct from old.finished_at)
        then
            insert into broken values (new.id || ' left its life: ' || old.status || ' to ' || new.status);
        end if;
        if new.status in ('completed', 'incomplete') and old.status = 'in_progress' and not exists (
            select from batches where id = new.batch_id and status = 'running') then
            insert into broken values (new.id || ' was answered for a batch that does not run');
        end if;
        if new.status in ('completed', 'incomplete') and new.cancel_requested_at is not null then
            insert into broken values (new.id || ' was answered although it was cancelled');
        end if;
        if old.status not in ('queued', 'in_progress')
                and to_jsonb(new) - array['idempotency_key', 'shared']
                    <> to_jsonb(old) - array['idempotency_key', 'shared']
        then
            insert into broken values (new.id || ' changed after its end');
        end if;
        if new.attempts < (new.status in ('completed', 'incomplete') and new.twin_of is null)::int then
            insert into broken values (new.id || ' is ' || new.status || ' after ' || new.attempts || ' attempts');
        end if;
        if old.status = 'queued' and new.status = 'in_progress' then
            insert into claimed values (new.id, new.batch_id);
        end if;
        if old.status = 'queued' and new.status = 'in_progress' and new.held then
            insert into broken values (new.id || ' runs although it is held');
        end if;
        if old.status = 'in_progress' and new.status = 'in_progress' and old.batch_id <> new.batch_id then
            insert into broken values (new.id || ' changed its batch while it ran');
        end if;
        if old.status = 'in_progress' and new.status = 'cancelled' and old.cancel_requested_at is null then
            insert into broken values (new.id || ' was stopped before its worker knew');
        end if;
        if new.status = 'queued' and new.cancel_requested_at is not null then
            insert into broken values (new.id || ' waits although it was cancelled');
        end if;
        return null;
    end $$;
    create function watch_batches() returns trigger language plpgsql as $$
    begin
        if old.status not in ('assigned', 'running') and (old.status <> new.status or new.lease_until is not null) then
            insert into broken values ('batch ' || new.id || ' had ended as ' || old.status || ', is ' || new.status);
        end if;
        if old.status = 'running' and (new.status = 'assigned' or new.fence > old.fence) then
            insert into broken values ('batch ' || new.id || ' was taken twice');
        end if;
        return null;
    end $$;
    create function watch_leads() returns trigger language plpgsql as $$
    begin
        if new.holder <> old.holder and (old.expires_at > clock_timestamp() or new.fence = old.fence) then
            insert into broken values (new.holder || ' took the lead of ' || old.holder);
        end if;
        return null;
    end $$;
    create function watch_lines() returns trigger language plpgsql as $$
    begin
        if exists (select from bulk_jobs where id = new.job_id and (paused_at is not null
                or status not in ('validating', 'in_progress') or new.line < next_line)) then
            insert into broken values ('line ' || new.line || ' of ' || new.job_id || ' was read at the wrong time');
        end if;
        return null;
    end $$;
    create trigger watch_lines after insert on bulk_lines for each row execute function watch_lines();
    create trigger watch_leads after update on leaderships for each row execute function watch_leads();
    create trigger watch_batches after update on batches for each row execute function watch_batches();
    create trigger watch_requests after update on requests for each row execute function watch_requests();
"""


@contextmanager
def own_server() -> Iterator[str]:
    """A Postgres for simulations alone; yields the URL of its database with the product's schema."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="magnus-simulation-", dir=memory if memory.exists() else None) as directory:
        Path(directory).chmod(0o711)
        server = embedded_postgres(Path(directory) / "postgres", durable=False)
        with running_server(server, Path(directory) / "postgres.log") as url:
            yield prepare(url)


def prepare(url: str) -> str:
    """Makes the database with its clock, the product's schema and the triggers; returns the database's URL."""
    url = make_url(url).set(database=NAME).render_as_string(hide_password=False)
    create_database(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CLOCK)
        for setting in (
            f"alter database {NAME} set search_path = public, pg_catalog",
            f"alter database {NAME} set deadlock_timeout = '1ms'",
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
        select 'truncate ' || string_agg(quote_ident(tablename), ', ') || ' restart identity' from pg_tables
        where schemaname = 'public' and tablename <> 'alembic_version'
    ); end $$;
    alter sequence planner_epochs restart
"""
