"""The predictor's process: predicts new requests when they are announced, at ticks, and by itself if ticks fail."""

from collections.abc import Callable
from functools import cache, partial
from time import sleep

from sqlalchemy import Engine

from learning.predictors.predictor_factory import MODEL_PREDICTORS, NEED_NO_FIT
from models.notifications import ERRORS, SUBMITTED, Notifications
from models.session import make_engine
from processes.hosted_process import HostedProcess
from processes.listening import Channel, Listener
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from tasks.app import app, database_url, host, redis_url, settings
from tasks.bounded_events import BoundedEvents
from tasks.messages import Messages
from tasks.prediction.predictor_in_service import PredictorInService, make_configured

# After this many tick intervals without a tick the predictor looks for requests by itself. Not tuned.
MISSING_TICKS = 1.5
# Between two checks if a pooler blocks announcements: a lone request waits half of it on average.
POLL_BEHIND_POOLER_S = 0.1
# Seconds between two checks, so that requests that arrive close together are predicted together. It equals the mean
# wait for a tick every 0.1 s, and only a request close behind another one waits. Not tuned otherwise.
SPACING_S = 0.05
STOP_WITHIN_S = 1.0  # longest time until the listener notices a stop; any short time works
# A chunk of texts is encoded within a transaction that locks their rows: on a CPU a large encoder takes many seconds.
IDLE_IN_TRANSACTION_S = 60.0
MODEL_CHUNK = 16  # requests and outcomes that a language model reads at once: some seconds of one core. Not tuned


@cache
def predictor() -> PredictorInService:
    """Returns this process's predictor, which the first look loads."""
    engine = make_engine(  # a prediction that a crash undoes is made again
        database_url, pool_size=1, name="magnus predictor", idle_in_transaction_s=IDLE_IN_TRANSACTION_S, durable=False
    )
    untrained = make_configured(settings) if settings.predictor in NEED_NO_FIT else None
    if settings.predictor in MODEL_PREDICTORS:
        return PredictorInService(engine, untrained, chunk=MODEL_CHUNK, most_observed=MODEL_CHUNK)
    return PredictorInService(engine, untrained, corrects=settings.magnus == "chosen")


def look() -> None:
    """Predict every request that waits for it."""
    predictor().run(on_predicted=on_predicted)


def on_predicted(others: bool) -> None:
    """Kick the planner, and report progress, so that predicting 50,000 lines does not look like a hang."""
    messages.kick_planner(soon=others)
    loop.report_progress()


def look_at_submissions(_: list[str]) -> None:
    """Predict new requests, then pause, so that those submitted shortly after each other are predicted together."""
    loop.step()
    sleep(SPACING_S)


messages = Messages(app, redis_url)
loop = Loop("prediction", look, MISSING_TICKS * settings.tick_s)


@app.task(name="tasks.predict", send_events=False, Request=BoundedEvents)  # type: ignore[untyped-decorator]  # celery is untyped
def predict() -> None:
    """Predict every request that waits for it, at one of beat's ticks."""
    loop.step()


def submission_listener(
    engine: Engine, on_submissions: Callable[[list[str]], None], on_pooler: Callable[[], None]
) -> Listener[str]:
    """Returns the thread that is notified of new requests, which are then predicted at once."""
    channel = Channel("submissions", partial(Notifications, engine, SUBMITTED), ERRORS)
    return Listener("submissions", channel, on_submissions, wait_s=STOP_WITHIN_S, on_pooler=on_pooler)


host(
    HostedProcess(
        [
            loop,
            submission_listener(
                make_engine(database_url, pool_size=1, name="magnus predictor listens"),
                look_at_submissions,
                partial(loop.step_every, POLL_BEHIND_POOLER_S),
            ),
            Heartbeat("predictor", database_url, [loop]),
        ]
    )
)
