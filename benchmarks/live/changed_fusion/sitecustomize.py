"""Replaces a part of `fusion` in each process of a service; Python runs this file where PYTHONPATH names its folder."""

import os

from benchmarks.fusion_variants import FUSION_VARIANTS

for where, name, other in FUSION_VARIANTS[os.environ["CHANGED_FUSION"]]:
    setattr(where, name, other)
