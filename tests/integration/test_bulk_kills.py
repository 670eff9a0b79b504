"""The process that reads a bulk job's lines, killed in the middle of its transactions and right behind them."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api_service import Api
from tests.integration.bulk_stage import BulkStage, chat_line, jsonl, records
from tests.integration.database_stage import eventually

pytestmark = pytest.mark.timeout(400)

KILLS, LINES = 10, 8000
WORK = "import tasks.bulk.regular_bulk_work as bulk\nwhile True: bulk.work()"
IN_A_STEP = "select 1 from pg_stat_activity where application_name = 'magnus bulk jobs' and state like 'idle in%'"


@contextmanager
def working_process(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", WORK], env=environment, stdout=subprocess.DEVNULL) as process:
        yield process
        process.send_signal(signal.SIGKILL)


def create(api: Api, lines: Any) -> dict[str, Any]:
    file = (io.BytesIO(jsonl(lines)), "lines.jsonl")
    made = api.call("POST", "/v1/files", data={"purpose": "batch", "file": file}).json
    body = {"input_file_id": made["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created: dict[str, Any] = api.call("POST", "/v1/batches", json=body).json
    return created


def test_nothing_is_lost_or_doubled(api: Api, redis_url: str, word_model: Path) -> None:
    batch = create(api, [chat_line(f"line {n}", "eins zwei") for n in range(LINES)])
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
    bulk = BulkStage(api)
    bulk.finish()
    done = api.call("GET", f"/v1/batches/{batch['id']}").json
    assert (done["status"], done["request_counts"]["completed"]) == ("completed", LINES)
    output = api.call("GET", f"/v1/files/{done['output_file_id']}/content").get_data()
    assert sorted(one["custom_id"] for one in records(output)) == sorted(f"line {n}" for n in range(LINES))
    assert api.sql("select count(*) from requests") == [(LINES,)]
