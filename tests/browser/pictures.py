"""Makes the pictures of docs/images from a real service at work: `python -m tests.browser.pictures`, five minutes.

Starts a service of its own, sends toy requests at a rate that rises and falls, serves half of a batch, and takes the
pictures while requests still wait. Nothing on them is drawn in: a chart shows the minutes that the service has been up.
"""

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import click
from playwright.sync_api import Page, sync_playwright

from benchmarks.inputs.request_sources import start_bulk_job, write_bulk_file
from cli.api_client import Client
from inference.toy.toy_applications import toy_requests
from tests.browser.chromium import FLAGS, find
from tests.e2e.whole_service import MAGNUS, Up, running_up

IMAGES = Path(__file__).parents[2] / "docs" / "images"
# name: path, colour scheme, width and height in pixels
PICTURES = {
    "overview": ("/", "light", 1280, 1000),
    "queue": ("/queue", "light", 1280, 620),
    "workers": ("/workers", "dark", 1280, 700),
    "predictions": ("/predictions", "light", 1280, 1220),
    "batch": ("/batches/{batch}", "light", 1280, 720),
    "overview-phone": ("/", "dark", 390, 800),
}
RATES = (20, 40, 60, 80, 120, 180)  # requests a second, drawn for each part of a minute; the highest overload two cores
PART_S = 20.0
BATCH_LINES, BATCH_WORDS = 8000, 30.0


@click.command()
@click.option("--minutes", default=4.0, help="How long the service works before the pictures are taken.")
@click.option("--policy", default="fusion", help="The service's policy.")
@click.option("--only", multiple=True, type=click.Choice([*PICTURES]), help="Take this picture, and no others.")
def main(minutes: float, policy: str, only: Sequence[str]) -> None:
    """Write docs/images/dashboard-*.png."""
    chosen = {name: PICTURES[name] for name in only or PICTURES}
    with running_up("--policy", policy) as up:
        work(up, minutes * 60)
        batch = half_served_batch(up) if "batch" in chosen else ""
        with subprocess.Popen(demo(up, seed=0, requests=6000, rate=300), stdout=subprocess.DEVNULL) as overload:
            Event().wait(8.0)  # until a queue has formed
            take(up, batch, chosen)
            overload.terminate()


def work(up: Up, seconds: float) -> None:
    """Send requests for this long, at another rate in each part."""
    generator = random.Random(1)
    for part in range(round(seconds / PART_S)):
        rate = generator.choice(RATES)
        # not checked: one toy answer in some thousands runs to its limit
        subprocess.run(demo(up, part, round(rate * PART_S), rate), check=False, stdout=subprocess.DEVNULL)


def demo(up: Up, seed: int, requests: int, rate: float) -> list[str]:
    """The command that sends toy requests to the service."""
    target = ["--url", up.url, "--api-key", up.key]
    return [MAGNUS, "demo", "--seed", str(seed), "--requests", str(requests), "--rate", str(rate), *target]


def half_served_batch(up: Up) -> str:
    """Send a batch, one of whose lines is refused, and wait until half of it is served; return its id."""
    with Client(up.url, up.key) as client, TemporaryDirectory() as directory:
        path, model = Path(directory) / "lines.jsonl", client.model()
        write_bulk_file(path, model, toy_requests(BATCH_LINES, seed=2, median_words=BATCH_WORDS))
        refused = {"model": model, "input": "river", "temperature": 99}
        with path.open("a") as file:
            file.write(json.dumps({"custom_id": "hot", "method": "POST", "url": "/v1/responses", "body": refused}))
        batch = start_bulk_job(client, path)
        while batch["request_counts"]["completed"] < BATCH_LINES / 2:
            Event().wait(1.0)
            batch = client.batch(batch["id"])
    return str(batch["id"])


def take(up: Up, batch: str, pictures: Mapping[str, tuple[str, str, int, int]]) -> None:
    """Sign in and photograph each page."""
    chromium = find()  # before Playwright runs here, since it starts one of its own
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        sign_in(page, up)
        for name, (path, scheme, width, height) in pictures.items():
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": height})
            page.goto(up.url + path.format(batch=batch))
            page.screenshot(path=IMAGES / f"dashboard-{name}.png")
        browser.close()


def sign_in(page: Page, up: Up) -> None:
    """Sign in with the password that `magnus up` made."""
    page.goto(f"{up.url}/sign-in")
    page.get_by_label("API key or the dashboard's password").fill(
        (up.state_dir / "dashboard-password").read_text().strip()
    )
    page.get_by_role("button", name="Sign in").click()


if __name__ == "__main__":
    main()
