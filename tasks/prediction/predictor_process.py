"""The predictor's process: predicts new requests when they are announced, at ticks, and by itself if ticks fail."""

import sys
from functools import cache, partial
from time import sleep

from celery_config import TICK_S
from learning.predictors.predictor_factory import MODEL_PREDICTORS, NEED_NO_FIT
from models.connections.session import make_engine
from models.notifications import ERRORS, SUBMITTED, Notifications
from processes.celery.celery_app import CeleryService, on_ticks, run
from processes.celery.messages import Messages
from processes.configured_predictor import make_configured
from processes.hosted_process import HostedProcess
from processes.listening import Channel, Listener
from processes.loop import Loop
from processes.signs_of_life import Heartbeat
from tasks.prediction.predictor_in_service import PredictorInService

# After this many tick intervals without a tick the predictor looks for requests by itself. Not tuned.
MISSING_TICKS = 1.5
# Seconds between two checks if a pooler blocks announcements: a lone request waits half as long on average.
POLL_BEHIND_POOLER_S = 0.1
# The pause after a prediction, so that requests that arrive close together are predicted together. It is as long as the
# mean wait for a tick every 0.1 s, and only a request close behind another one waits. Not tuned otherwise.
SPACING_S = 0.05
STOP_WITHIN_S = 1.0  # longest time until the listener notices a stop; any short time works
MODEL_CHUNK = 16  # requests and outcomes that a language model reads at once: some seconds of one core. Not tuned


def predictor(service: CeleryService) -> HostedProcess:
    """Makes the process with the predictor's loop, its task and its threads."""
    settings, messages = service.settings, Messages(service.app, service.redis_url)

    @cache
    def in_service() -> PredictorInService:  # the first look loads it
        # a prediction that a crash undoes is made again
        engine = make_engine(service.database_url, pool_size=1, name="magnus predictor", durable=False)
        untrained = make_configured(settings) if settings.predictor in NEED_NO_FIT else None
        if settings.predictor in MODEL_PREDICTORS:
            return PredictorInService(engine, untrained, chunk=MODEL_CHUNK, most_observed=MODEL_CHUNK)
        return PredictorInService(engine, untrained, corrects=settings.parameters.magnus == "chosen")

    def on_predicted(others: bool) -> None:
        """Kicks the planner, and reports progress, so that predicting 50,000 lines does not look like a hang."""
        messages.kick_planner(soon=others)
        loop.report_progress()

    def look_at_submissions(_: list[str]) -> None:
        """Predicts new requests, then pauses, so that requests submitted shortly after each other go together."""
        loop.step()
        sleep(SPACING_S)

    def look() -> None:
        in_service().run(on_predicted)

    loop = Loop("prediction", look, MISSING_TICKS * TICK_S)
    on_ticks(service.app, "predict", loop.step)
    listening = make_engine(service.database_url, pool_size=1, name="magnus predictor listens")
    channel = Channel("submissions", partial(Notifications, listening, SUBMITTED), ERRORS)
    poll = partial(loop.step_every, POLL_BEHIND_POOLER_S)
    listener = Listener("submissions", channel, look_at_submissions, wait_s=STOP_WITHIN_S, on_pooler=poll)
    return HostedProcess([loop, listener, Heartbeat("predictor", service.database_url, [loop])])


if __name__ == "__main__":
    sys.exit(run(predictor, "predict", "predictor"))
