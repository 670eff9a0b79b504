"""Keeps garbage collections short and rare; imports nothing that gevent would have to patch first."""

import gc

# A full collection comes at the earliest after this many collections of the middle generation, each of which comes
# after 7,000 more objects: Python's default of 10 ran one every few seconds, which stopped a web process with 1,500
# waiting calls for 0.17 s and a planner with a million waiting lines for 0.6 s, and found nothing. Reference cycles of
# old objects then take at most some 70 MB. Not tuned.
FULL_AFTER = 100


def limit_garbage_collection() -> None:
    """Keep the objects of modules, some hundred thousand, out of later collections; make full ones rare; call it once.

    Python runs a full collection only once the number of new objects is a quarter of that of the old ones. With the
    modules' objects among the old ones, reference cycles of tens of thousands of requests piled up before each full
    collection, and the planner grew by 5 MB an hour (docs/results/chaos.md).
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)
    gc.collect()
    gc.freeze()
    gc.collect()  # resets the collector's counts
