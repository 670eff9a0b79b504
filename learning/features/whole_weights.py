"""Refuses weights that transformers would fill with random numbers: those that are missing, or of another shape."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

SHOWN_NAMES = 3  # the most missing names that the error lists; not tuned
# A head without which encoders are often stored; it is not used, because sentence-transformers pools states itself.
UNUSED = re.compile(r"(^|\.)pooler\.")


class IncompleteWeights(ValueError):
    """A model's files lack weights, or have one of another shape."""


@contextmanager
def whole_weights_only() -> Iterator[None]:
    """Makes transformers raise IncompleteWeights when it loads an incomplete model, also inside other libraries."""
    load = vars(PreTrainedModel)["from_pretrained"]

    def load_whole(cls: type[PreTrainedModel], *names: Any, **options: Any) -> Any:
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `require_whole` names them
        loaded, found = load.__func__(cls, *names, **options)
        require_whole(found)
        return loaded

    PreTrainedModel.from_pretrained = classmethod(load_whole)
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = load


def require_whole(found: dict[str, Any]) -> None:
    """Raises IncompleteWeights for missing or mismatched weights; `found` is transformers' loading info."""
    if missing := sorted(name for name in found["missing_keys"] if not UNUSED.search(name)):
        others = len(missing) - SHOWN_NAMES
        more = f" and {others} more" if others > 0 else ""
        raise IncompleteWeights(f"its files lack {', '.join(missing[:SHOWN_NAMES])}{more}")
    for name, stored, expected in sorted(found["mismatched_keys"]):
        raise IncompleteWeights(f"its {name} has the shape {[*stored]} where its config.json means {[*expected]}")
