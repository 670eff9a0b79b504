"""How the service does in a word, and which limit binds; from figures alone."""

from dataclasses import dataclass
from typing import Literal

Word = Literal["keeping up", "behind", "stuck", "failing"]
Limit = Literal["memory", "compute", "predictor", "planner", "no worker"]

FAILING_SHARE = 0.05  # of what ended within ten minutes; a service in order fails next to none. Not tuned.
FEWEST_FAILED = 3  # of them: one bad request among few is its own fault
# Something waits and nothing has ended for so long, seconds: an answer that takes longer alone is rare. Not tuned.
SILENT_S = 120.0
BEHIND_S = 30.0  # what a new request would wait; whoever calls and waits has given up by then. Not tuned.
WAITS_FOR_PREDICTION_S = 5.0  # predictors look at once; a planner goes on without them after 4 s
MEMORY_FULL = 0.85  # of Θ reserved: the next batch does not fit beside it. Not tuned.


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """What the verdict is about; ages in seconds, shares from 0 to 1, `lately` is ten minutes."""

    queued: int
    in_flight: int
    unpredicted: int
    oldest_s: float | None
    wait_s: float | None  # until a request that comes now would start; None: no planner says so
    workers: int  # that get batches
    paused: bool
    planner: bool
    predictor: bool
    memory_share: float  # of Θ, reserved by what runs, over all workers
    ended_lately: int
    failed_lately: int
    last_ended_s: float | None


@dataclass(frozen=True, slots=True)
class ServiceVerdict:
    """The word, the limit that binds (None: none does), and one sentence."""

    word: Word
    limit: Limit | None
    sentence: str

    @property
    def tone(self) -> str:
        """The CSS class of the word."""
        return {"keeping up": "completed", "behind": "incomplete"}.get(self.word, "failed")


def verdict_on(figures: ServiceFigures) -> ServiceVerdict:
    """The worst that holds: stuck, failing, behind, keeping up."""
    limit = binding_limit(figures)
    if figures.failed_lately >= FEWEST_FAILED and figures.failed_lately > FAILING_SHARE * figures.ended_lately:
        sentence = f"{figures.failed_lately:,} of the {figures.ended_lately:,} requests that ended lately failed."
        return ServiceVerdict("failing", limit, sentence)
    if limit in ("no worker", "planner"):
        return ServiceVerdict("stuck", limit, _why_stuck(figures))
    silent_s = min((s for s in (figures.last_ended_s, figures.oldest_s) if s is not None), default=0.0)
    if figures.queued and silent_s > SILENT_S:
        return ServiceVerdict("stuck", limit, f"Requests wait, and none has ended for {silent_s:.0f} seconds.")
    wait_s = max(figures.wait_s or 0.0, figures.oldest_s or 0.0)
    if figures.queued and wait_s > BEHIND_S:
        return ServiceVerdict("behind", limit, f"What comes in waits about {wait_s:.0f} seconds before it is served.")
    return ServiceVerdict("keeping up", None if limit in ("compute", "memory") else limit, _why_well(figures, limit))


def binding_limit(figures: ServiceFigures) -> Limit | None:
    """What would have to grow, or come back, for more to be served."""
    if not figures.workers:
        return "no worker"
    if figures.paused or not figures.planner:
        return "planner"
    waits_long = figures.unpredicted > 0 and (figures.oldest_s or 0.0) > WAITS_FOR_PREDICTION_S
    if not figures.predictor or (waits_long and figures.unpredicted > figures.queued / 2):
        return "predictor"
    if not figures.queued:
        return None
    return "memory" if figures.memory_share > MEMORY_FULL else "compute"


def _why_stuck(figures: ServiceFigures) -> str:
    who = "Requests wait" if figures.queued else "What comes in will wait"
    if not figures.workers:
        return f"{who}: no worker takes batches."
    return f"{who}: planning is paused." if figures.paused else f"{who}: no planner works."


def _why_well(figures: ServiceFigures, limit: Limit | None) -> str:
    if limit == "predictor":
        return "No predictor works, or it lags behind: lengths are guessed from each application's mean."
    return "What comes in is served as it comes." if figures.queued or figures.in_flight else "Nothing waits."
