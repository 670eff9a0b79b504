"""Runs each refit in a process of its own: its end frees memory that the trainer would keep, tens of MB an hour."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context, parent_process
from threading import Thread

from learning.predictors.predictor_factory import bounds_of
from models.connections.session import brief_engine
from models.planning.leadership import Lead
from processes import json_logs
from processes.configured_predictor import make_configured
from settings import Settings
from tasks.training.refit_jobs import RefitJobs

# A process that loads all modules once and is safe to fork, because it has no threads.
FORK_SERVER = get_context("forkserver")


class RefitProcesses:
    """Runs one refit after the other; a refit is published only while `lead` is held."""

    def __init__(self, settings: Settings, database_url: str) -> None:
        self._settings, self._database_url = settings, database_url
        self.lead: Lead | None = None
        self._learned_until: dict[str, float] = {}

    def refit_length(self) -> None:
        """Refit the length predictor; raises BrokenProcessPool if the process was killed."""
        self._run(RefitJobs.refit_length)

    def refit_serving_time(self) -> None:
        """Refit the serving time estimator; raises BrokenProcessPool if the process was killed."""
        self._run(RefitJobs.refit_serving_time)

    def _run(self, refit: Callable[[RefitJobs], None]) -> None:
        with ProcessPoolExecutor(1, FORK_SERVER, _end_with_trainer) as process:
            self._learned_until = process.submit(
                _refit, self._settings, self._database_url, refit, self.lead, self._learned_until
            ).result()


def _end_with_trainer() -> None:
    """Ends this process when the trainer ends, so that nothing is published after the trainer was killed."""
    Thread(target=_wait_for_its_end, daemon=True).start()


def _wait_for_its_end() -> None:
    if (trainer := parent_process()) is not None:
        trainer.join()
    os._exit(1)


def _refit(
    settings: Settings,
    database_url: str,
    refit: Callable[[RefitJobs], None],
    lead: Lead | None,
    learned_until: dict[str, float],
) -> dict[str, float]:
    json_logs.configure_background(settings.log_level)
    published = settings.parameters.magnus == "published"
    make_untrained, bounds = partial(make_configured, settings), bounds_of(settings.predictor)
    with brief_engine(database_url, "magnus trainer") as database:
        jobs = RefitJobs(database, make_untrained, bounds, lead, learned_until, published)
        refit(jobs)
    return jobs.learned_until
