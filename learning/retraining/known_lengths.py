"""Which answers of the log have a length to learn from, although some of them were cut off.

Where many answers reach their limit, those that end by themselves are the short ones: learned from alone, they teach
that answers are short. Predictions end at the limit too, so an answer that reached it counts as one of that length.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from learning.predictors.length_predictor import Outcome
from scheduling.request import COVERAGE


def known_lengths(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes to learn from, none of them censored, in the order given.

    Left out are answers that were cancelled or failed, and those cut off by a limit that the application's complete
    answers often exceed: they would teach the limits that some clients set.
    """
    complete = defaultdict(list)
    for outcome in outcomes:
        if not outcome.censored:
            complete[outcome.prompt.application].append(outcome.generated_tokens)
    long = {application: float(np.quantile(lengths, COVERAGE)) for application, lengths in complete.items()}
    return [
        replace(outcome, censored=False)
        for outcome in outcomes
        if not outcome.censored
        or outcome.generated_tokens >= max(outcome.prompt.limit_tokens, long.get(outcome.prompt.application, 0.0))
    ]
