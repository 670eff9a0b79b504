"""A dump of Postgres is a whole backup: what is restored from it is a service that goes on."""

import subprocess
from pathlib import Path

import psycopg

from cli.hosting.embedded_servers import create_database, postgres_binaries
from models import planner_state
from models.connections.installation import read_installation
from models.connections.schema_state import schema_state
from models.connections.session import make_engine
from models.planning import planner_requests
from tests.conftest import with_database
from tests.integration.database_stage import Stage


def test_a_restored_dump_has_every_answer_and_serves_what_waited(stage: Stage, database_url: str, tmp_path: Path):
    stage.worker("w1")
    stage.request("answered", status="completed", output_text="one two", output_tokens=2, finished_at="now")
    stage.request("waits")
    dump, restored = tmp_path / "magnus.dump", with_database(database_url, "restored")
    binaries = postgres_binaries()
    subprocess.run([binaries / "pg_dump", "--format=custom", f"--file={dump}", database_url], check=True)
    create_database(restored)
    subprocess.run([binaries / "pg_restore", "--exit-on-error", f"--dbname={restored}", dump], check=True)
    engine = make_engine(restored)
    try:
        with engine.begin() as connection, stage.database.begin() as original:
            assert schema_state(connection).current
            assert read_installation(connection) == read_installation(original)
            epoch = planner_state.next_epoch(connection)
            (queued,) = planner_requests.fetch_new_requests(connection, epoch, 10)
            assert queued.request.id == "waits"
            assert connection.exec_driver_sql("select output_text from requests where id = 'answered'").scalar() == (
                "one two"
            )
    finally:
        engine.dispose()
        with psycopg.connect(database_url, autocommit=True) as direct:
            direct.execute("drop database restored with (force)")
