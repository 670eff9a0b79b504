"""Keeps the objects of modules, some hundred thousand in a process, out of every later garbage collection.

Python looks at all objects again once a quarter as many have come. With those of the modules among them the cycles of
tens of thousands of requests piled up before, and the planner grew by 5 MB an hour (docs/results/chaos.md).
"""

import gc


def freeze() -> None:
    """Call once, when everything is loaded: what exists now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.collect()  # forgets how many there were
