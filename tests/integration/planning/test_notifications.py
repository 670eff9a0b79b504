"""Who listens hears of submissions and of requests that ended, without any tick; a cut connection is made again."""

from collections.abc import Callable, Iterator
from functools import partial
from threading import Semaphore
from time import sleep

import pytest
from sqlalchemy.orm import Session

from models import notifications
from models.connections.session import make_engine
from models.notifications import ENDED, ERRORS, SUBMITTED, Notifications
from processes import listening
from processes.listening import Channel, Listener
from tests.integration.api_service import Api
from tests.integration.database_stage import MODEL, Stage
from tests.integration.serving_worker import Serving, small_model

NAME = "magnus test listens"
SPACING_S = 0.05
Start = Callable[[Callable[[], None]], None]


@pytest.fixture
def looks() -> Semaphore:
    """A semaphore that each look at the database releases."""
    return Semaphore(0)


@pytest.fixture
def start_listener(database_url: str, looks: Semaphore) -> Iterator[Start]:
    """Starts a listener; its argument is called if no notification can come."""
    listeners: list[Listener[str]] = []

    def start(on_pooler: Callable[[], None]) -> None:
        def look(_: list[str]) -> None:
            looks.release()
            sleep(SPACING_S)

        channel = Channel("submissions", partial(Notifications, engine, SUBMITTED), ERRORS)
        listener = Listener("submissions", channel, look, wait_s=0.1, on_pooler=on_pooler)
        listeners.append(listener)
        listener.start()

    engine = make_engine(database_url, pool_size=1, name=NAME)
    yield start
    for listener in listeners:
        listener.stop()
        listener.join()


def never() -> None:
    raise AssertionError("notifications do come")


def test_a_submission_makes_the_predictor_look(api: Api, looks: Semaphore, start_listener: Start):
    start_listener(never)
    assert looks.acquire(timeout=60)  # the look at requests that were there before
    for _ in range(3):
        api.submit()
        assert looks.acquire(timeout=60)


def test_submissions_at_once_need_few_looks(api: Api, looks: Semaphore, start_listener: Start):
    start_listener(never)
    assert looks.acquire(timeout=60)
    for _ in range(50):
        notify(api)
    assert looks.acquire(timeout=60)
    seen = 1
    while looks.acquire(timeout=3 * SPACING_S):
        seen += 1
    assert seen < 50


def notify(api: Api) -> None:
    with Session(api.engine) as session, session.begin():
        notifications.notify_submitted(session.connection())


def test_a_cut_connection_listens_again_and_looks_at_what_it_missed(
    api: Api, looks: Semaphore, start_listener: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(listening, "RECONNECT_S", 0.01)
    start_listener(never)
    assert looks.acquire(timeout=60)
    api.sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = :name", name=NAME)
    assert looks.acquire(timeout=60)
    api.submit()
    assert looks.acquire(timeout=60)


def test_the_end_of_a_request_is_notified_from_the_moment_on_in_which_somebody_listens(
    stage: Stage, database_url: str, tmp_path_factory: pytest.TempPathFactory
):
    loaded, prompt_format = small_model(tmp_path_factory.getbasetemp() / MODEL)
    serving = Serving(stage, loaded, prompt_format, kv_tokens=100_000)
    heard = Notifications(make_engine(database_url, pool_size=1, name=NAME), ENDED)
    try:
        for request_id in ("r1", "r2"):
            stage.request(request_id, limit_tokens=2)
            serving.serve(request_id)
            heard.say_awaited()
        assert heard.wait(within_s=60) == ["r2"]
    finally:
        heard.close()
        serving.close()


def test_behind_a_pooler_the_predictor_is_told_to_look_often(
    looks: Semaphore, start_listener: Start, monkeypatch: pytest.MonkeyPatch
):
    told = Semaphore(0)
    monkeypatch.setattr(notifications, "is_pooled", lambda connection: True)
    start_listener(told.release)
    assert told.acquire(timeout=60)
    assert not looks.acquire(blocking=False)
