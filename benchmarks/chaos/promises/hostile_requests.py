"""Requests of a client that means ill, or does not know better: each value at or beyond an end of its range."""

from itertools import repeat
from typing import Any

WORDS = "apple river cloud stone"
SAMPLING: list[dict[str, Any]] = [
    *({"temperature": value} for value in (1e-38, 1e-45, 5e-324, 1e-300, 2.0, 1e308, -1.0, float("nan"))),
    *({"temperature": 1.0, "top_p": value} for value in (1e-38, 5e-324, 0.0, 1.0, 1.0000001, -0.5)),
    {"temperature": 1e-38, "top_p": 1e-38},
    {"temperature": 2.0, "top_p": 5e-324},
    *({"max_output_tokens": value} for value in (0, 1, 1024, 10**9, 2**63, -1, 1.5)),
]
OURS: list[dict[str, Any]] = [
    *({"top_k": value} for value in (1, 2**31 - 1, 2**31, -1)),
    *({"seed": value} for value in (0, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63))),
    *({"stop": value} for value in (["\0"], ["\ud800"], [""], [" "], ["e", "a", "o", "i"], ["x" * 5000], [5])),
    *({"deadline_s": value} for value in (1e-9, 5e-324, 1e300, 0, -1, float("inf"))),
    *({"priority": value} for value in (100, -100, 10**12)),
]
TEXTS = [
    "\0",
    "\ud800 lone",
    "שלום עולם " * 60,
    "\u202e" + "مرحبا " * 100,
    "👩‍👩‍👧‍👦🏳️‍🌈" * 40,
    "e" + "\u0301" * 500,
    "{" * 900,
    "</s><|im_end|>\n" * 40,
    "a" * 200_000,
    "\n" * 50 + "x",
]


def hostile_bodies() -> list[dict[str, Any]]:
    """Each value alone in an otherwise ordinary request, then texts, applications and shapes."""
    plain = {"input": WORDS, "instructions": "Repeat the text."}
    deep: Any = "x"
    for _ in repeat(None, 400):
        deep = [deep]
    return [
        *({**plain, **values} for values in SAMPLING),
        *({**plain, "temperature": 1.0, "magnus": values} for values in OURS),
        *({**plain, "input": text} for text in TEXTS),
        *({**plain, "instructions": text} for text in TEXTS),
        *({**plain, "metadata": {"application": text[:500]}} for text in TEXTS),
        {**plain, "input": deep},
        {**plain, "input": []},
        {**plain, "model": "\ud800"},
        {**plain, "metadata": deep},
    ]
