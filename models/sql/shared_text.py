"""SQL as statements that are made once: parsing a long one for its parameters takes a tenth of a millisecond."""

from functools import cache

import sqlalchemy
from sqlalchemy import TextClause


@cache
def text(sql: str) -> TextClause:
    """The statement of this SQL; whoever changes it, by `bindparams` for one, gets a copy."""
    return sqlalchemy.text(sql)
