"""Recognises by an English request's words what it asks for, because stories are long and names are short.

In other languages these features are 0, and only the hashed words tell requests apart. On chat these features lowered
the RMSE by 1.6 % and raised Kendall's tau by 0.025.
"""

import re

import numpy as np
import numpy.typing as npt

PATTERNS = {
    "a long form": r"\b(essay|story|article|blog|script|poem|song|letter|e-?mail|speech|report|guide|itinerary|recipe"
    r"|tutorial|dialogue|paragraphs?|lyrics|chapter)\b",
    "a creation": r"\b(write|compose|draft|create|generate|design|develop|produce|invent)\b",
    "an explanation": r"\b(explain|describe|discuss|elaborate|analy[sz]e|compare|contrast|evaluate|outline)\b",
    "a list": r"\b(list|ideas|tips|ways|steps|examples|suggest\w*|recommend\w*|brainstorm|plan|give me|options|things"
    r"|types|reasons|benefits|advantages|pros)\b",
    "how": r"^\W*how\b",
    "why": r"^\W*why\b",
    "what": r"^\W*whats?\b",
    "a fact": r"^\W*(who|when|where|which|whose)\b",
    "yes or no": r"^\W*(is|are|was|were|do|does|did|can|could|should|will|would|has|have)\b",
    "a quantity": r"\bhow (many|much|old|long|far|tall|big|often)\b",
    "brevity": r"\b(one|single|a) (word|sentence|line)\b|\b(short|brief\w*|concise\w*|quick\w*|only|just)\b",
    "a label": r"\b(classify|categori[sz]e|identify|extract|sentiment|label|choose|select|true or false|yes or no"
    r"|correct answer|multiple choice|pick)\b",
    "a revision": r"\b(translate|rewrite|rephrase|paraphrase|convert|correct|fix|edit|proofread|simplify|shorten"
    r"|reword)\b",
    "a summary": r"\b(summari[sz]e|summary|tl;?dr|key points|main points)\b",
    "code": r"\b(code|function|python|java|javascript|sql|html|css|program|script|algorithm|implement|regex|class"
    r"|bash)\b",
    "reading": r"\b(given|based on|following|below|above|passage|text|paragraph|context|according to)\b",
    "knowledge": r"\b(capital|name of|year|date|population|author|wrote|invented|founded|born|located|president"
    r"|meaning of|define|definition|synonym|antonym)\b",
    "a judgement": r"\b(differences?|versus|vs|better|best|most)\b",
    "the model": r"\b(you|your|yourself)\b",
    "the user": r"\b(i|my|me|i'm|we)\b",
    "a role": r"\b(imagine|pretend|act as|role|character|you are)\b",
    "detail": r"\b(detail\w*|comprehensive|in-depth|thorough\w*|long|step[- ]by[- ]step|complete)\b",
    "arithmetic": r"\b(calculate|compute|solve|equation|sum|number|math|total|equals?)\b",
    "a format": r"\b(table|csv|json|bullet|format)\b",
}
NUMBER_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
# Rough number of tokens of one requested unit; only the logarithm of units times tokens is used.
UNIT_TOKENS = {"word": 1, "line": 10, "sentence": 20, "paragraph": 80, "page": 300}
OTHER_UNIT_TOKENS = 25  # an item, an idea, a step
AMOUNT = re.compile(
    rf"\b(\d{{1,4}}|{'|'.join(NUMBER_WORDS)})\s+(?:\w+\s+)?(word|sentence|paragraph|line|page|item|point|example|way|idea|tip"
    r"|step|thing)s?\b"
)
INTENT_VALUES = len(PATTERNS) + 1
WEIGHT = 0.35  # weight relative to word vectors of length 1; values from 0.2 to 0.5 change scores by at most 0.5 %

_patterns = [re.compile(pattern) for pattern in PATTERNS.values()]


def intent_features(text: str) -> npt.NDArray[np.float32]:
    """Return which PATTERNS a lower-case text contains, and the log of the tokens it asks for, (INTENT_VALUES,)."""
    found = [WEIGHT * (pattern.search(text) is not None) for pattern in _patterns]
    return np.array([*found, WEIGHT / 3 * _log_tokens_asked(text)], np.float32)


def _log_tokens_asked(text: str) -> float:
    match = AMOUNT.search(text)
    if match is None:
        return 0.0
    number = NUMBER_WORDS.get(match[1]) or int(match[1])
    return float(np.log1p(number * UNIT_TOKENS.get(match[2], OTHER_UNIT_TOKENS)))
