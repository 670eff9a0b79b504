"""Wasted memory access (WMA) of a batch: reads of cached tokens that add nothing to an answer (Magnus III-C, Eq. 2-4).

Eq. (2) + (3) of a request simplify. With g = G(p), l = L(p), L = L(B), G = G(B):

    g·(L - l) + Σ from i = g to G of (i + L)  =  [(G + 1)·L + G·(G + 1)/2]  -  [g·l + g·(g - 1)/2]

The first bracket depends on the batch alone, the second on the request alone. So the WMA of a batch is its first
bracket less the smallest second bracket of its requests, and the effect of one more request is known without looking at
the others.
"""


def generating_waste(length: int, generation_length: int, batch_length: int) -> int:
    """Eq. (2): reads of a request's pad tokens until its EOS."""
    return generation_length * (batch_length - length)


def waiting_waste(generation_length: int, batch_length: int, batch_generation_length: int) -> int:
    """Eq. (3): reads of a finished request's tokens, padding included, while it waits for the batch to end."""
    iterations = batch_generation_length - generation_length + 1
    return iterations * (generation_length + batch_generation_length) // 2 + iterations * batch_length


def batch_reads(batch_length: int, batch_generation_length: int) -> int:
    """The first bracket: every read that a row of such a batch makes."""
    return (batch_generation_length + 1) * batch_length + batch_generation_length * (batch_generation_length + 1) // 2


def useful_reads(length: int, generation_length: int) -> int:
    """The second bracket: the reads that serve the request's own answer."""
    return generation_length * length + generation_length * (generation_length - 1) // 2


def wasted_memory_access(lengths: list[tuple[int, int]]) -> int:
    """Eq. (4): the largest waste among the requests, given as (length, generation length)."""
    batch_length = max(length for length, _ in lengths)
    batch_generation_length = max(generation_length for _, generation_length in lengths)
    return batch_reads(batch_length, batch_generation_length) - min(useful_reads(*request) for request in lengths)
