"""Finds out that a row repeats itself: its answer ends with the same tokens over and over, its prompt has none such."""

from collections.abc import Sequence

LONGEST_PERIOD = 64  # tokens that are repeated, a sentence or two
# A row repeats itself once so many tokens, and so many times the repeated ones, ended its answer. Of 5,000 answers of
# people and models, these stop {STOPPED}; `tests/unit/inference/local/tokens/test_repetition.py` judges by brute force.
LEAST_TOKENS = 64
LEAST_TIMES = 6
CHECKED_TOKENS = 32  # an answer is looked at whenever it has so many tokens more: it costs 0.3 µs a token. Not tuned


def repeated_period(tokens: Sequence[int]) -> int | None:
    """Returns the length of the shortest period with which the tokens end often enough, or None."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // LEAST_TIMES) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        length = max(LEAST_TOKENS, LEAST_TIMES * period)
        if len(tokens) >= length and tokens[-length + period :] == tokens[-length:-period]:
            return period
    return None


def has_twice(tokens: Sequence[int], repeated: Sequence[int]) -> bool:
    """Returns whether tokens have these twice in a row, from any of them on."""
    period = len(repeated)
    turns = [[*repeated[n:], *repeated[:n]] for n in range(period)]
    begins = {tuple(turn) for turn in turns}
    return any(
        tokens[at : at + period] == tokens[at + period : at + 2 * period] and tuple(tokens[at : at + period]) in begins
        for at in range(len(tokens) - 2 * period + 1)
    )


class LoopStops:
    """Ends the rows of an engine that repeat themselves, and counts them and the tokens that they would have had."""

    def __init__(self) -> None:
        self.rows = self.saved_tokens = 0

    def loops(self, prompt: Sequence[int], generated: Sequence[int]) -> bool:
        """Returns whether the row is to be ended; looks at its tokens only now and then."""
        if len(generated) % CHECKED_TOKENS:
            return False
        tail = generated[-max(LEAST_TOKENS, LEAST_TIMES * LONGEST_PERIOD) :]
        period = repeated_period(tail)
        return period is not None and not has_twice(prompt, tail[-period:])
