"""Rights of the role that the service runs as: it reads and writes rows, and changes no table."""

from collections.abc import Sequence

from sqlalchemy import Connection

from models.sql import text

# Each is a format() of Postgres, which quotes the names; %1$I the role, %2$I the database, %3$I the schema.
GRANTS = (
    "grant connect on database %2$I to %1$I",
    "grant usage on schema %3$I to %1$I",
    "grant select, insert, update, delete on all tables in schema %3$I to %1$I",
    "grant usage, select on all sequences in schema %3$I to %1$I",
    # for tables of later migrations, run by the same owner
    "alter default privileges in schema %3$I grant select, insert, update, delete on tables to %1$I",
    "alter default privileges in schema %3$I grant usage, select on sequences to %1$I",
)


def grant(connection: Connection, role: str) -> bool:
    """Let `role` run the service; whether it was made now, without a password and able to log in.

    The caller owns the tables, and may create roles if there is none of this name.
    """
    made = connection.scalar(text("select 1 from pg_roles where rolname = :role"), {"role": role}) is None
    for statement in ("create role %1$I login", *GRANTS) if made else GRANTS:
        quoted = connection.scalar(
            text("select format(cast(:statement as text), cast(:role as text), current_database(), current_schema())"),
            {"statement": statement, "role": role},
        )
        connection.exec_driver_sql(str(quoted))
    return made


def unreadable_tables(connection: Connection) -> Sequence[str]:
    """Returns the tables of the schema that this connection's role may not read."""
    return connection.scalars(
        text("""
            select tablename from pg_tables where schemaname = current_schema() and tablename <> 'alembic_version'
                and not has_table_privilege(format('%I.%I', schemaname, tablename), 'select')
        """)
    ).all()
