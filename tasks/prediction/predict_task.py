"""The task `tasks.predict`: predicts new requests when they are announced, at beat's ticks, and if none comes."""

from functools import cache, partial

import structlog
from celery import signals
from sqlalchemy.exc import SQLAlchemyError

from learning.predictors.predictor_factory import MODEL_PREDICTORS, NEED_NO_FIT
from models.session import make_engine
from processes import startup_objects
from tasks.app import app, database_url, redis_url, settings
from tasks.configured_predictor import make_configured
from tasks.liveness.heartbeat import Heartbeat
from tasks.liveness.pulse import Pulse
from tasks.liveness.regular_work import RegularWork
from tasks.messages import Messages
from tasks.prediction.predictor_in_service import PredictorInService
from tasks.prediction.submission_listener import SubmissionListener

MISSING_TICKS = 1.5  # of MAGNUS_TICK_S: without a tick for so long the predictor looks by itself. Not tuned.
UNHEARD_S = 0.1  # so often it looks where a pooler keeps announcements away: a lone request then waits half of it
# A chunk of texts is encoded within a transaction that has their rows: on a CPU a large encoder takes many seconds.
IDLE_IN_TRANSACTION_S = 60.0
MODEL_CHUNK = 16  # requests and outcomes at once if a language model reads them: some seconds of one core. Not tuned

log = structlog.get_logger()


@cache
def predictor() -> PredictorInService:
    """This process's predictor."""
    engine = make_engine(
        database_url, pool_size=1, name="magnus predictor", idle_in_transaction_s=IDLE_IN_TRANSACTION_S
    )
    untrained = make_configured(settings) if settings.predictor in NEED_NO_FIT else None
    if settings.predictor in MODEL_PREDICTORS:
        return PredictorInService(engine, untrained, chunk=MODEL_CHUNK, most_observed=MODEL_CHUNK)
    return PredictorInService(engine, untrained)


@cache
def messages() -> Messages:
    """This process's connection to the broker."""
    return Messages(app, redis_url)


@cache
def heartbeat() -> Heartbeat:
    """This process's heartbeat."""
    return Heartbeat("predictor", database_url, lambda: regular_looks.busy_s)


@cache
def listener() -> SubmissionListener:
    """What calls `regular_looks` at each announcement."""
    engine = make_engine(database_url, pool_size=1, name="magnus predictor listens")
    return SubmissionListener(engine, regular_looks, partial(regular_looks.work_every, UNHEARD_S))


def look() -> None:
    """Predict every request that waits for it; an error is logged, and the next tick tries again."""
    try:
        predictor().run(on_predicted=on_predicted)
    except SQLAlchemyError as error:
        log.error("prediction failed", error=str(error))
    except Exception:
        log.exception("prediction failed")


def on_predicted() -> None:
    """Some requests can be planned, and the look goes on: the 50,000 lines of a bulk job are no hanging process."""
    messages().kick_planner()
    regular_looks.got_on()


regular_looks = RegularWork("predict", look, MISSING_TICKS * settings.tick_s)


@app.task(name="tasks.predict", send_events=False)  # type: ignore[untyped-decorator]  # celery is untyped
def predict() -> None:
    """One look."""
    regular_looks()


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _start(**_: object) -> None:
    regular_looks.start()
    listener().start()
    Pulse(lambda: regular_looks.works).start()
    heartbeat().start()
    startup_objects.freeze()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _end(**_: object) -> None:
    listener().stop()
    heartbeat().stop()
