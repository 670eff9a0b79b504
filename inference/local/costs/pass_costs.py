"""Learns the seconds of the engine's passes by their number of tokens, and from that what else a pass may compute.

Guesses must pay, and prompts of joining rows must not keep the others waiting.
"""

import numpy as np

KEPT = 0.99  # weight of each pass relative to the next one: the last hundred count. Not tuned
# Expected costs before any measurement, as shares of the mean pass: the extra cost of a pass with twice its tokens
# (measured with 16 rows of SmolLM2), and the fixed extra cost if some row has several tokens.
TWICE_SHARE, SEVERAL_SHARE = 0.4, 0.02
# The expected SEVERAL_SHARE weighs as much as this many measured passes, TWICE_SHARE as one: a pass with several tokens
# of a row has more tokens, too, so that it takes passes of both kinds to tell the two costs apart. Not tuned.
SEVERAL_WEIGHT = 4.0

# While others join, a row's next token takes at most this many times as long as usual. SmolLM2 in bfloat16
# then computes about 90 tokens of prompts in a pass of 8 rows, at two thirds of the speed of a pass for prompts alone.
LONGEST_GAP = 3.0
# Bounds of the prompt tokens in a pass. The fewest are computed whatever they cost, so that joiners make progress. With
# the most, the fixed cost is a seventh of SmolLM2's pass, and the scores of attention take some megabytes.
FEWEST_PREFILLED, MOST_PREFILLED = 32, 256

Line = tuple[float, float, float]  # seconds of a pass without tokens, of each token, and for several tokens of a row


class PassCosts:
    """The seconds of passes: a line over their tokens, and a fixed part for passes with several tokens of a row."""

    def __init__(self) -> None:
        # decayed sums over passes: 1, tokens, tokens², several, several · tokens, and seconds · (1, tokens, several)
        self._sums = np.zeros(8)

    def count(self, tokens: int, several: bool, seconds: float) -> None:
        """Counts a pass over `tokens` tokens of all rows together; `several` if some row had more than one of them."""
        by_tokens = several * tokens
        self._sums *= KEPT
        self._sums += (1, tokens, tokens**2, several, by_tokens, seconds, seconds * tokens, seconds * several)

    def line(self) -> Line | None:
        """Returns the line by least squares, or None before the first pass."""
        passes, tokens, squares, several, of_those, seconds, by_tokens, of_several = self._sums
        if not passes:
            return None
        mean, mean_s = tokens / passes, seconds / passes
        products = [
            [passes, tokens, several],
            [tokens, squares + mean**2, of_those],
            [several, of_those, several + SEVERAL_WEIGHT],
        ]
        expected = mean * TWICE_SHARE * mean_s, SEVERAL_WEIGHT * SEVERAL_SHARE * mean_s
        sums = [seconds, by_tokens + expected[0], of_several + expected[1]]
        base_s, token_s, several_s = np.linalg.solve(products, sums).tolist()
        return base_s, max(0.0, token_s), max(0.0, several_s)

    def room(self, rows: int) -> int:
        """Returns how many prompt tokens make a pass of `rows` rows take LONGEST_GAP times as long."""
        line = self.line()
        if line is None:
            return FEWEST_PREFILLED
        base_s, token_s, several_s = line
        most_s = (LONGEST_GAP - 1) * (base_s + rows * token_s) - several_s
        fitting = most_s / token_s if token_s else MOST_PREFILLED
        return round(min(max(fitting, FEWEST_PREFILLED), MOST_PREFILLED))

    def share(self, tokens: int, of: int) -> float:
        """Returns the share of a pass's seconds that is due to `tokens` of its `of` tokens."""
        base_s, token_s, _ = self.line() or (0.0, 1.0, 0.0)
        return tokens * token_s / (base_s + of * token_s) if token_s else 0.0
