"""Finds out that a row repeats itself: its answer ends with the same tokens over and over, its prompt has none such."""

from collections.abc import Sequence

LONGEST_PERIOD = 64  # tokens that are repeated, a sentence or two
# A row repeats itself once its last LEAST_REPEATED tokens, and at least a whole period, repeat those before them. Of
# 15,000 answers of people and models to the papers' tasks and to chats, this stops one with SmolLM2's tokenizer, a loop
# of a model. With a look every CHECKED_TOKENS, periods of up to 49 tokens end within 64 repeated tokens.
LEAST_REPEATED = 48
CHECKED_TOKENS = 16  # an answer is looked at whenever it has this many tokens more. Not tuned


def repeated_period(tokens: Sequence[int]) -> int | None:
    """Returns the length of the shortest period with which the tokens end often enough, or None."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // 2) + 1):
        if tokens[-1] != tokens[-1 - period]:
            continue
        length = period + max(LEAST_REPEATED, period)
        if len(tokens) >= length and tokens[-length + period :] == tokens[-length:-period]:
            return period
    return None


def has_twice(tokens: Sequence[int], repeated: Sequence[int]) -> bool:
    """Returns whether tokens have these twice in a row, from any of them on."""
    period, run = len(repeated), 0
    turns = {(*repeated[n:], *repeated[:n]) for n in range(period)}
    for end, (token, later) in enumerate(zip(tokens, tokens[period:], strict=False), start=1):
        run = run + 1 if token == later else 0
        if run == period and tuple(tokens[end - period : end]) in turns:
            return True
    return False


class LoopStops:
    """Ends rows that repeat themselves; counts them, and the tokens that they had left to their limits.

    With `parks`, such a row goes back to the queue instead, as background work that goes on to its limit.
    """

    def __init__(self, *, parks: bool = False) -> None:
        self.parks, self.rows, self.saved_tokens = parks, 0, 0

    def loops(self, prompt: Sequence[int], generated: Sequence[int]) -> bool:
        """Returns whether an answer repeats itself as its prompt does not; looks at it only now and then."""
        if len(generated) % CHECKED_TOKENS:
            return False
        tail = generated[-LONGEST_PERIOD - max(LEAST_REPEATED, LONGEST_PERIOD) :]
        period = repeated_period(tail)
        return period is not None and not has_twice(prompt, tail[-period:])

    def count(self, saved_tokens: int) -> None:
        """Counts a row that was ended with this many tokens left to its limit."""
        self.rows += 1
        self.saved_tokens += 0 if self.parks else saved_tokens
