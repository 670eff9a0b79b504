"""`magnus migrate --wait` begins before Postgres does, says why it waits, and migrates once Postgres answers."""

import os
import subprocess
from pathlib import Path

from sqlalchemy import make_url

from cli.hosting.process_commands import BIN


def test_it_waits_for_a_postgres_that_comes_late(tmp_path: Path, database_url: str) -> None:
    given = make_url(database_url)
    target = Path(str(given.query["host"])) / ".s.PGSQL.5432"
    late = tmp_path / ".s.PGSQL.5432"
    url = given.update_query_dict({"host": str(tmp_path)}).render_as_string(hide_password=False)
    environment = {**os.environ, "MAGNUS_DATABASE_URL": url}
    command = [str(BIN / "magnus"), "migrate", "--wait"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("waiting for Postgres: the database refuses: ")
        late.symlink_to(target)
        printed, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, printed) == (0, "the schema is the newest\n")
