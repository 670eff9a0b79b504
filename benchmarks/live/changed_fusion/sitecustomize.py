"""Replaces a part of `fusion` in a service's planner; Python runs this file where PYTHONPATH names its folder.

Other processes import nothing here: a web process must not, before gevent has patched the standard library.
"""

import os
import sys

if any("planner_process" in argument for argument in sys.orig_argv):
    from benchmarks.fusion_variants import FUSION_VARIANTS

    for where, name, other in FUSION_VARIANTS[os.environ["CHANGED_FUSION"]]:
        setattr(where, name, other)
