"""What configures an engine beside its model and its memory, as one value that the engine reads once."""

from dataclasses import dataclass

from inference.local.costs.cost_counters import StepLog
from inference.local.costs.thread_trials import ThreadTrials
from inference.local.guessed_tokens import Guessing
from inference.local.kv.kv_cache import BLOCK_TOKENS
from inference.local.row_probe import RowProbe
from inference.local.tokens.repetition import LoopStops


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of an engine; without any it shares, guesses and predicts nothing."""

    # the share of the budget beyond which a continuous batch preempts rows
    memory_threshold: float = 1.0
    block_tokens: int = BLOCK_TOKENS
    # the most tokens of joiners' prompts that are computed between two tokens of a row; None: as many as the measured
    # costs allow, or all for models whose steps cannot compute prompts
    prefill_tokens: int | None = None
    # whether rows of a continuous batch share equal beginnings of prompts, also with earlier rows if memory allows
    prefix_cache: bool = False
    step_log: StepLog | None = None  # gets the seconds of each step, from which a worker learns its costs
    thread_trials: ThreadTrials | None = None  # choose the number of CPU threads by how long steps take
    probe: RowProbe | None = None  # predicts which rows will run longest; these are preempted first
    loop_stops: LoopStops | None = None  # ends rows that repeat themselves
    guessing: Guessing | None = None  # makes guesses of the rows' next tokens, which passes over blocks verify
