"""The first words of instructions, by which people recognise an application that its client did not name."""

import re
from collections.abc import Collection

from sqlalchemy.orm import Session

from models.connections.sql import text
from models.tables import RequestStatus

DIGEST = re.compile(r"[0-9a-f]{12}")  # the names that `protocol/requests/client_prompt.py:application_name` makes
CHARACTERS = 60  # the most characters that are returned, for a line of a table; not tuned


def first_words(session: Session, applications: Collection[str]) -> dict[str, str]:
    """Returns the beginning of the instructions by application, if the name is their digest and they are still kept."""
    digests = sorted({name for name in applications if DIGEST.fullmatch(name)})
    if not digests:
        return {}
    rows = session.execute(
        text("""
            select name, beginning from unnest(cast(:names as text[])) as name, lateral (
                select left(instructions, 10 * :characters) as beginning
                from unnest(cast(:statuses as text[])) as state, lateral (
                    select instructions from requests where application = name and status = state
                    order by arrived_at desc, id desc limit 1
                ) as newest
                where left(encode(sha256(convert_to(instructions, 'UTF8')), 'hex'), length(name)) = name limit 1
            ) as found
        """),
        {"names": digests, "statuses": [status.value for status in RequestStatus], "characters": CHARACTERS},
    )
    return {row.name: _shortened(row.beginning) for row in rows}


def _shortened(beginning: str) -> str:
    words = " ".join(beginning.split())
    return words if len(words) <= CHARACTERS else words[: CHARACTERS - 1].rstrip() + "…"
