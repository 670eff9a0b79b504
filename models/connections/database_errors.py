"""What a refused connection or statement means to an operator: one line with the remedy, without any password."""

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

URL = "MAGNUS_DATABASE_URL"
GRANT = "let the owner of the tables run `magnus migrate --grant ROLE` for the role of " + URL
# A part of the server's or libpq's message -> what to do; the first one that fits counts.
REMEDIES = {
    "password authentication failed": f"check user and password in {URL}",
    "no password supplied": f"give the password in {URL}",
    "no pg_hba.conf entry": f"let pg_hba.conf admit this host and role, or correct {URL}",
    "does not support ssl": f"take sslmode out of {URL}, or turn SSL on at the server",
    "unsupported startup parameter": f"PgBouncer refuses start-up options: take `options` out of "
    f"{URL} and give them to the role (`alter role … set search_path = …`)",
    "not allowed to connect": f"grant connect on the database to the role of {URL}",
    "permission denied for database": f"grant connect on the database to the role of {URL}",
    "permission denied": GRANT,
    "must be owner": GRANT,
    "no schema has been selected": "create the schema that search_path names, or correct search_path",
    "invalid connection option": f"correct the part behind the `?` of {URL}",
    "invalid dsn": f"correct {URL}",
    "invalid port": f"correct the port in {URL}",
    "too many": "raise max_connections, or stop what holds the connections",
    "remaining connection slots": "raise max_connections, or stop what holds the connections",
    "read-only transaction": f"{URL} names a stand-by: give the address of the primary",
    "recovery mode": "wait until Postgres has recovered",
    "starting up": "wait until Postgres has started",
    "does not exist": f"create the database or role, or correct {URL}",
}
OTHERWISE = f"check host and port in {URL}, and that the server runs"


def explain(error: SQLAlchemyError | psycopg.Error) -> str:
    """The first line of the server's message, and what to do."""
    original = error.orig if isinstance(error, DBAPIError) else error
    said = next(iter(str(original).strip().splitlines()), type(original).__name__)
    if isinstance(original, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return f"the database does not have the tables of this version ({said}); run `magnus migrate`"
    lowered = str(original).lower()
    remedy = next((remedy for part, remedy in REMEDIES.items() if part in lowered), OTHERWISE)
    return f"the database refuses: {said}; {remedy}"
