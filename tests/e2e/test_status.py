"""`magnus status` as people and scripts read it."""

import json
import os
import pty
import signal
import subprocess
from contextlib import suppress

from cli.hosting.service_access import POLICIES
from tests.e2e.whole_service import MAGNUS, Up


def test_it_says_what_the_service_does(up: Up) -> None:
    command = [MAGNUS, "status", "--state-dir", str(up.state_dir)]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "workers alive" in shown.stdout
    assert json.loads(subprocess.check_output([*command, "--json"]))["policy"] in POLICIES


def test_watching_shows_it_again_and_again_until_it_is_interrupted(up: Up) -> None:
    command = [MAGNUS, "status", "--watch", "--state-dir", str(up.state_dir)]
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment) as watching:
        os.close(end)
        shown = b""
        while shown.count(b"workers alive") < 3:
            shown += os.read(terminal, 4096)  # raises once the command has ended
        watching.send_signal(signal.SIGINT)
        with suppress(OSError):
            while os.read(terminal, 4096):
                pass
    os.close(terminal)
    assert watching.returncode == 130


def test_watching_is_not_for_scripts(up: Up) -> None:
    said = subprocess.run([MAGNUS, "status", "--watch", "--json"], capture_output=True, text=True)
    assert said.returncode == 2
