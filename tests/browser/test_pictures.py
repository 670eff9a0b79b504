"""The pictures of docs/images: made here, kept where one is missing (delete them and run this to renew them)."""

from pathlib import Path

import pytest

from tests.browser import busy_service
from tests.browser.site import Site, Visitor

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PICTURES = {
    "overview": ("/", "light", 1100, 900),
    "queue": ("/queue", "light", 1100, 420),
    "workers": ("/workers", "dark", 1100, 620),
    "overview-phone": ("/", "dark", 390, 800),
}
MOST_BYTES = 200_000  # of one in the repository


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_a_page_at_work_is_small_and_kept(site: Site, visitor: Visitor, name: str) -> None:
    path, scheme, width, height = PICTURES[name]
    busy_service.fill(site)
    busy_service.add_history(site)
    visitor.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    visitor.page.set_viewport_size({"width": width, "height": height})
    page = visitor.go(path)
    if path == "/":
        assert page.locator("figure.chart polyline").count() >= 7
    picture = page.screenshot()
    assert len(picture) < MOST_BYTES
    kept = IMAGES / f"dashboard-{name}.png"
    if not kept.exists():
        IMAGES.mkdir(exist_ok=True)
        kept.write_bytes(picture)
