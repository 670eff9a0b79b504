"""Guesses a row's next tokens where its answer copies its prompt or itself (prompt-lookup decoding).

A pass that computes a row's newest token can verify guesses of the next tokens as well, in less time than a pass for
each would take. While an answer copies a text, the text's next tokens are the guesses. Whether guesses pay follows from
two figures that are observed whether or not anything is guessed: how often a row's next token was the foreseen one, and
the seconds of passes by their number of tokens.
"""

from collections.abc import Sequence
from itertools import accumulate, cycle, islice
from operator import mul

from inference.local.costs.pass_costs import Line, PassCosts

# The first estimates of the chance that the foreseen token comes, once 1, 2 to 3, 4 to 7, 8 or more tokens in a row
# were copied. The row's own tokens soon outweigh them.
FIRST_CHANCES = (0.3, 0.5, 0.7, 0.8)
REMEMBERED = 32  # a chance is averaged over this many foreseen tokens; not tuned
# A pass with guesses must promise this many times the tokens a second of a pass without them, because the promise is
# uncertain, and rows without guesses wait for the pass, too. Not tuned.
LEAST_GAIN = 1.05
# Nothing is guessed while more rows run. With 8 rows of SmolLM2 in bfloat16 on one core, guesses gave 1.00, 1.03 and
# 1.19 times the tokens a second in three applications. In a pass of 32 rows, a guess costs half of what a row's own
# token costs, so that two thirds of the guesses would have to come true.
MOST_ROWS = 8
ROUNDS = 4  # the search for the most tokens a second converges in two or three rounds


class CopiedText:
    """A row's tokens, the place that its answer seems to copy, and how often the token there came next."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._followed = 0  # the number of the answer's tokens that were added
        # for each token and each pair of tokens, the place behind its last occurrence
        self._behind: dict[int | tuple[int, int], int] = {}
        self._place: int | None = None  # position in `tokens` of the token that is expected next
        self._copied = 0  # how many tokens in front of that place equal the row's last tokens
        self._chances, self._tried = list(FIRST_CHANCES), [1] * len(FIRST_CHANCES)
        for token in prompt_ids:
            self._place = None
            self._append(token)

    def follow(self, answer: Sequence[int]) -> None:
        """Adds the answer's new tokens, and counts how many of them were foreseen."""
        for token in answer[self._followed :]:
            if self._place is not None:
                comes, kind = self.tokens[self._place] == token, _kind(self._copied)
                self._tried[kind] = min(self._tried[kind] + 1, REMEMBERED)
                self._chances[kind] += (comes - self._chances[kind]) / (self._tried[kind] + 1)
                self._place, self._copied = (self._place + 1, self._copied + 1) if comes else (None, 0)
            self._append(token)
        self._followed = len(answer)

    def chances(self, most: int) -> list[float]:
        """Returns the chances that the next token, the next two, ... up to `most` are those that `guess` returns."""
        if self._place is None:
            return []
        return [*accumulate((self._chances[_kind(self._copied + n)] for n in range(most)), mul)]

    def guess(self, count: int) -> list[int]:
        """Returns the foreseen `count` tokens; a text that repeats itself is expected to go on repeating."""
        if self._place is None:
            return []
        return list(islice(cycle(self.tokens[self._place : self._place + count]), count))

    def _append(self, token: int) -> None:
        """Adds a token; if none is foreseen, looks for an earlier place of the last two tokens, or else of the last.

        On the real answers to the papers' tasks, looking for two or for three tokens alone foresaw up to a tenth less.
        """
        behind, pair = self._behind, (self.tokens[-1] if self.tokens else -1, token)
        if self._place is None:
            self._place, self._copied = behind.get(pair), 2
            if self._place is None:
                self._place, self._copied = behind.get(token), 1
        self.tokens.append(token)
        behind[pair] = behind[token] = len(self.tokens)


def _kind(copied: int) -> int:
    return min(copied.bit_length(), len(FIRST_CHANCES)) - 1


def most_worthwhile(chances: Sequence[Sequence[float]], rows: int, line: Line) -> list[int]:
    """Returns the number of guesses for each row with which a pass gives most tokens a second; all are 0 if none pay.

    chances[i] has the falling chances that the first guess of row i, the first two, ... come true. `rows` rows get a
    token anyway. A guess pays while it promises more tokens than the engine could generate in the time that the guess
    takes (Dinkelbach, 1967: with the best ratio of tokens to seconds, the maximum of tokens - ratio * seconds is 0).
    """
    base_s, token_s, verifying_s = line
    plain_s = base_s + rows * token_s
    best = [0] * len(chances)
    if plain_s <= 0:
        return best
    rate = LEAST_GAIN * rows / plain_s
    for _ in range(ROUNDS):
        price = rate * token_s
        counts = [sum(chance > price for chance in of_row) for of_row in chances]
        gained = sum(sum(of_row[:count]) for of_row, count in zip(chances, counts, strict=True))
        reached = (rows + gained) / (plain_s + verifying_s + token_s * sum(counts))
        if reached <= rate:
            break
        best, rate = counts, reached
    return best


class Guessing:
    """Makes the guesses of each pass of an engine; `most` is the largest number of guesses for a row."""

    def __init__(self, most: int) -> None:
        self.most, self.costs = most, PassCosts()
        self.made = self.right = 0  # guesses that passes have verified, and those of them that came true

    def begins(self, rows: int) -> bool:
        """Returns whether anything may be guessed while `rows` rows run; if not, their texts need not be followed."""
        return 0 < rows <= MOST_ROWS and self.most > 0

    def guesses(self, texts: Sequence[CopiedText | None], rooms: Sequence[int]) -> list[list[int]]:
        """Returns guesses of each row's next tokens, at most rooms[i] for row i; a row without a text gets none."""
        running = sum(text is not None for text in texts)
        limits = [min(self.most, room) for room in rooms]
        chances = [[] if text is None else text.chances(most) for text, most in zip(texts, limits, strict=True)]
        line = self.costs.line() if any(chances) else None
        if line is None:
            return [[] for _ in texts]
        counts = most_worthwhile(chances, running, line)
        return [[] if text is None else text.guess(count) for text, count in zip(texts, counts, strict=True)]

    def verified(self, made: int, right: int) -> None:
        """Counts the guesses of a pass."""
        self.made += made
        self.right += right

    def count(self, tokens: int, further: int, seconds: float) -> None:
        """Counts a pass over `tokens` tokens; `further` of them were guesses or belonged to prompts."""
        self.costs.count(tokens, further > 0, seconds)
