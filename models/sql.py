"""SQL statements, each parsed once: finding the parameters of a long one takes a tenth of a millisecond."""

from functools import cache

import sqlalchemy
from sqlalchemy import TextClause


@cache
def text(sql: str) -> TextClause:
    """Returns the statement of this SQL, the same object for the same SQL; `bindparams` returns a changed copy."""
    return sqlalchemy.text(sql)
