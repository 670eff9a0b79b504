"""What the package's extras bring: loads their modules by name where a setting chooses them, or says what is missing.

Nothing else imports these modules, so that the base install runs without them; import-linter's contracts keep it so.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

# An extra counts as installed if all of its modules named here are found.
BRINGS = {
    "engine": ("torch", "transformers", "sentence_transformers", "peft"),
    "mcp": ("mcp",),
    "parquet": ("pyarrow",),
}


class ExtraMissing(ImportError):
    """An extra that something needs is not installed; the message says how to install it."""

    def __init__(self, what: str, extra: str) -> None:
        self.what, self.extra = what, extra
        super().__init__(f"{what} needs the extra {extra}: pip install 'magnus-llm[{extra}]'")


def missing(what: str, extra: str = "engine") -> str | None:
    """Returns, in one line, that `what` needs an extra that is not installed, or None."""
    lacking = any(find_spec(module) is None for module in BRINGS[extra])
    return str(ExtraMissing(what, extra)) if lacking else None


def load(module: str, what: str, extra: str = "engine") -> Any:
    """Returns one of our modules or of the extra's, imported now; raises ExtraMissing in the name of `what`."""
    if missing(what, extra):
        raise ExtraMissing(what, extra)
    return import_module(module)
