"""Makes full garbage collections rare; imports nothing that gevent would have to patch first."""

import gc
import threading
import time

# By itself Python runs a full collection after 70,000 more objects. Every few seconds one stopped a web process with
# 1,500 waiting calls for 0.17 s, and a planner with a million waiting lines for 0.6 s; it found hardly anything,
# because most cycles are young. Old cycles are collected once in this time. Not tuned.
FULL_EVERY_S = 300.0
NEVER = 2**31 - 1


def limit_garbage_collection(full_every_s: float = FULL_EVERY_S) -> None:
    """Collect old objects only every `full_every_s` seconds, and never those of start-up; call it once.

    Modules have some hundred thousand objects, which a full collection would look at.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    gc.collect()
    gc.freeze()
    threading.Thread(target=_collect_all, args=(full_every_s,), name="full collections", daemon=True).start()


def _collect_all(every_s: float) -> None:
    while True:
        time.sleep(every_s)
        gc.collect()
