"""Pods as processes of this host: the command, environment, signals and probes that the manifests give them."""

import os
import re
import shlex
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import httpx
import pytest

from cli.hosting.process_commands import BIN
from tests.kubernetes.manifests import ROOT, Object

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
# As root everything but the directory of temporary files is read-only to a pod's process, as all but its volumes is in
# the cluster.
READ_ONLY = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount --bind "$0" "$0" && mount -o remount,ro,bind / && cd "$PWD" && exec "$@"',
]


@dataclass
class Pod:
    """A pod of one container, whose image and volumes are a directory of this host."""

    name: str
    spec: Object
    given: dict[str, str]  # what the ConfigMap and the Secret hold
    directory: Path
    port: int  # of the web, in place of 8000
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def container(self) -> Object:
        """Its container that runs Magnus."""
        (found,) = self.spec["containers"]
        return dict(found)

    def environment(self) -> dict[str, str]:
        """Everything that its container has in its environment."""
        image = dict(word.split("=", 1) for word in shlex.split(re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)[0]))
        fields = {one["name"]: self.name for one in self.container["env"]}  # metadata.name is all that they ask for
        found = image | self.given | fields | {"HOME": "/var/lib/magnus"}
        here = {"/opt/magnus/bin": str(BIN), "$PATH": os.environ["PATH"], "/var/lib/magnus": str(self.directory)}
        for there, place in here.items():
            found = {name: value.replace(there, place) for name, value in found.items()}
        return found | {"MAGNUS_PORT": str(self.port)}

    def command(self) -> list[str]:
        """Its container's command line: the image's unless the manifest has another one, and the arguments."""
        environment = self.environment()
        (entry,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE, re.MULTILINE)
        words = [*self.container.get("command", [entry]), *self.container["args"]]
        return [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words]

    def start(self) -> None:
        """Start its container's process."""
        self.directory.mkdir(exist_ok=True)
        read_only = [*READ_ONLY, tempfile.gettempdir()] if os.geteuid() == 0 else []
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*read_only, *self.command()], env=self.environment(), cwd=self.directory, stdout=log, stderr=log
            )

    def said(self) -> str:
        """What its process has logged."""
        return (self.directory / "log").read_text()

    def run(self, *command: str) -> str:
        """What a command says in its container, as `kubectl exec` runs it."""
        ran = subprocess.run(
            command, env=self.environment(), cwd=self.directory, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def passes(self, probe: str) -> bool:
        """Whether its process is as this probe wants it; true if it has no such probe."""
        wanted = self.container.get(probe)
        if wanted is None:
            return True
        if "exec" in wanted:
            at_web = [word.replace("magnus-web:8000", f"127.0.0.1:{self.port}") for word in wanted["exec"]["command"]]
            asked = subprocess.run(at_web, env=self.environment(), cwd=self.directory, capture_output=True, check=False)
            return asked.returncode == 0
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{wanted['httpGet']['path']}", timeout=30).is_success
        except httpx.TransportError:
            return False

    def await_started(self, within_s: float = 300.0) -> None:
        """Return once the pod is ready, as a roll-out awaits it."""
        assert self.process is not None
        pause = Event()
        for _ in range(round(within_s / 0.25)):
            assert self.process.poll() is None, self.said()
            if all(self.passes(probe) for probe in ("startupProbe", "livenessProbe", "readinessProbe")):
                return
            pause.wait(0.25)
        pytest.fail(f"{self.name} is not ready: {self.said()}")

    def delete(self) -> int:
        """End the pod as its deletion does; returns the process's exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.spec.get("terminationGracePeriodSeconds", 30))

    def kill(self) -> None:
        """End whatever is left of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
