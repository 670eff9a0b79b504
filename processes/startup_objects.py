"""Keeps what start-up loaded out of garbage collections; imports nothing that gevent would have to patch first."""

import gc


def freeze_startup_objects() -> None:
    """Keep the objects of modules, some hundred thousand, out of every later garbage collection; call it once.

    Python runs a full collection only once the number of new objects is a quarter of that of the old ones. With the
    modules' objects among the old ones, reference cycles of tens of thousands of requests piled up before each full
    collection, and the planner grew by 5 MB an hour (docs/results/chaos.md).
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # resets the collector's counts
