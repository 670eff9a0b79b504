"""The process that reads a bulk job's lines, killed in the middle of its transactions and right behind them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from tests.integration.api_service import Api
from tests.integration.bulk_stage import BulkStage, chat_line, counts, create, results
from tests.integration.database_stage import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

KILLS, LINES = 10, 8000
IN_A_STEP = "select 1 from bulk_jobs where tries > 0 and fed_at > clock_timestamp()"


@contextmanager
def working_process(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tasks.chores.chores_process"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def test_nothing_is_lost_or_doubled(
    api: Api, client: OpenAI, bulk: BulkStage, redis_url: str, word_model: Path
) -> None:
    batch = create(client, [chat_line(f"line {n}", "eins zwei") for n in range(LINES)])
    environment = {
        **os.environ,
        "MAGNUS_DATABASE_URL": str(api.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)),
        "MAGNUS_REDIS_URL": redis_url,
        "MAGNUS_MODEL": str(word_model),
    }

    def next_line() -> int:
        return int(api.sql("select next_line from bulk_jobs")[0][0])

    for kill in range(KILLS):
        before = next_line()
        with working_process(environment):
            if kill % 2:
                eventually(lambda before=before: next_line() > before, within_s=60)  # type: ignore[misc]
            else:
                eventually(lambda: api.sql(IN_A_STEP), within_s=60)
    assert 1 < next_line() <= LINES  # so that it was killed amid the job each time
    bulk.finish()
    done = client.batches.retrieve(batch.id)
    assert (done.status, counts(done)) == ("completed", (LINES, LINES, 0))
    assert results(client, done.output_file_id).keys() == {f"line {n}" for n in range(LINES)}
    assert api.sql("select count(*) from requests") == [(LINES,)]
