"""Refits of the length predictor while a service is new, when each answer tells much."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine

from learning.retraining.training_set import TrainingSetBounds
from models import training_log

FIRST_REFIT_ANSWERS = 60  # a fifth of the texts is held out: fewer seldom leave the 40 and 10 that a refit needs
MOST_EARLY_ANSWERS = 4_000  # more come within the regular interval or bring little; any value above 1,000 does


@dataclass
class EarlyRefits:
    """Refits as soon as there are answers enough, and again whenever they have doubled.

    Without effect once the regular interval brings fewer answers than that.
    """

    database: Engine
    refit: Callable[[], None]
    _at_answers: int = FIRST_REFIT_ANSWERS

    def look(self) -> None:
        """Refit if it is time."""
        if self._at_answers > MOST_EARLY_ANSWERS:
            return
        with self.database.begin() as connection:
            answers = training_log.count_answers(connection, MOST_EARLY_ANSWERS, TrainingSetBounds().age_s)
        if answers >= self._at_answers:
            self._at_answers = 2 * answers  # one refit after a restart, however many answers there are
            self.refit()
