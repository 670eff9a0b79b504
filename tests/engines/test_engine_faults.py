"""A server that is killed or frozen with rows in it, and rows that are cancelled: nothing is lost, nothing runs on."""

from dataclasses import replace
from threading import Event

import httpx
import pytest

from inference.engine_requests import FinishedRow
from inference.remote.server_load import load_from_metrics
from tests.engines.tested_engines import EngineUnderTest

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]  # vLLM takes minutes to start where others use the cores too
POLL_S = 0.01  # seconds between two looks at a server
ROWS, CANCELLED = 40, 20
LIMIT = 6000  # tokens of rows that only their limits end; 40 such rows fit into the server


def drain_as_a_worker_does(tested: EngineUnderTest, rows) -> dict[str, FinishedRow]:
    """Steps until all rows have ended; a row that the server failed goes in again with the tokens that it has."""
    waiting, ended = {row.id: row for row in rows}, {}
    while waiting:
        tested.engine.insert([row for id_, row in waiting.items() if id_ not in tested.engine.rows])
        for row in tested.engine.step():
            if row.reason == "unfinished":
                waiting[row.id] = replace(waiting[row.id], generated_ids=row.generated_ids)
            else:
                ended[row.id] = row
                del waiting[row.id]
    return ended


def texts(tested: EngineUnderTest, ended: dict[str, FinishedRow]) -> dict[str, tuple[str, int]]:
    return {one: (tested.text(row), row.tokens) for one, row in ended.items()}


def test_a_server_that_is_killed_and_started_again_loses_no_row_and_changes_no_answer(tested, server, right_engine):
    rows = tested.toy_sequences(60)
    right = texts(right_engine, right_engine.drain(rows))
    tested.engine.insert(rows)
    ended = tested.until_tokens(2, [row.id for row in rows[:5]])
    server.kill()
    server.start(wait=False)
    ended |= drain_as_a_worker_does(tested, [row for row in rows if row.id not in ended])
    server.await_ready()
    assert texts(tested, ended) == right


def test_a_server_that_is_frozen_and_goes_on_loses_no_row_and_changes_no_answer(tested, server, right_engine):
    rows = tested.toy_sequences(60)
    right = texts(right_engine, right_engine.drain(rows))
    tested.engine.insert(rows)
    ended = tested.until_tokens(2, [row.id for row in rows[:5]])
    server.freeze()
    for _ in range(100):
        ended |= {row.id: row for row in tested.engine.step()}
    server.thaw()
    ended |= drain_as_a_worker_does(tested, [row for row in rows if row.id not in ended])
    assert texts(tested, ended) == right


def test_a_row_that_is_taken_out_leaves_the_server_while_the_others_run_on(endless):
    assert endless.server is not None
    rows = endless.toy_sequences(ROWS, limit=LIMIT)
    ids = [row.id for row in rows]
    endless.engine.insert(rows)
    pause = Event()
    with httpx.Client(base_url=endless.server.url) as client:

        def running() -> int:
            return load_from_metrics(client.get("/metrics").text).running or 0

        while running() < ROWS:  # vLLM may let one run to its end before it begins the others
            ended = {row.id for row in endless.engine.step()}
            endless.engine.insert([row for row in rows if row.id in ended])
        for number, row in enumerate(ids[:CANCELLED], 1):
            assert endless.engine.remove(row) is not None
            while running() > ROWS - number:
                pause.wait(POLL_S)
        assert endless.engine.step() == []
        assert set(endless.engine.rows) == set(ids[CANCELLED:])
    for row in ids[CANCELLED:]:
        endless.engine.remove(row)
