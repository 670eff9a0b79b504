"""The families of docs/models.md, each once: rows that join while others run answer as each would alone."""

from collections.abc import Iterator

from benchmarks.gpu.phase_plan import Part, Terms
from benchmarks.harness import Json
from tests.models.served_families import FAMILIES, families_of_page, served, shown
from tests.models.tiny_families import Family
from tests.models.ways_of_serving import continuous

SMALL_FAMILIES = 4


def parts(terms: Terms) -> Iterator[Part]:
    """Serve each family, those with windows and other thresholds first."""
    families = sorted(FAMILIES, key=lambda family: not family.fast)
    for family in families[: SMALL_FAMILIES if terms.small else None]:
        yield shown(family), lambda family=family: outcome(family, terms.device)  # type: ignore[misc]


def outcome(family: Family, device: str) -> Json:
    """Serve a family; its figures say whether the page is right, and what keeps a card's kernels from serving it."""
    found = served(family, device, (continuous,))
    return {**found._asdict(), "as_the_page": found[:2] == families_of_page()[shown(family)]}
