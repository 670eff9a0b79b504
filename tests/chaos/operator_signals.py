"""The five signals of a running service, as its operator reads them, and the table of when each was right."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from time import monotonic

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cli.api_client import Client
from cli.checks.doctor_checks import findings
from cli.output import CommandFailed, Unreachable
from settings import Settings

ALERTS = Path(__file__).parents[2] / "docs" / "prometheus" / "alerts.yml"
PASSWORD = "long enough to sign in"
WITHIN_S = 30.0
VERDICT = re.compile(r'id="verdict">(.*?)<.*?<p>(.*?)</p>.*?id="limit">(.*?)<', re.DOTALL)
# Patterns of what each signal says of a healthy service.
HEALTHY = {"verdict": "^keeping up/none: ", "/readyz": "^200 ready: $", "status": "^$", "doctor": "^$", "alarm": "^$"}


@dataclass
class Operator:
    """Reads the signals of a running service over HTTP and by its commands, and keeps the table of a walk."""

    url: str
    key: str
    settings: Settings
    alarms: set[str]  # those that are looked at
    rows: dict[str, dict[str, float | None]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)  # at the last look

    def says(self) -> dict[str, str]:
        """What each signal says now."""
        return {
            "verdict": self._verdict(),
            "/readyz": self._ready(),
            "status": self._status(),
            "doctor": self._doctor(),
            "alarm": " ".join(sorted(self._alarms())),
        }

    def _get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(self.url + path, auth=("magnus", PASSWORD), timeout=10)
        except httpx.TransportError:
            return None

    def _verdict(self) -> str:
        """Word, limit and sentence of the overview, else the status code and what the page says."""
        page = self._get("/")
        if page is None:
            return "no answer"
        if not page.is_success:
            return f"{page.status_code}: {plain(page.text)}"
        ((word, sentence, limit),) = VERDICT.findall(page.text)
        return f"{word}/{limit}: {html.unescape(sentence)}"

    def _ready(self) -> str:
        page = self._get("/readyz")
        if page is None:
            return "no answer"
        told = page.json()
        if page.is_success:
            return f"200 {told['status']}: {'; '.join(told['missing'])}"
        return f"{page.status_code}: {told.get('reason') or told['error']['message']}"

    def _status(self) -> str:
        """What `magnus status` says is missing; it would try some seconds longer to get an answer."""
        with Client(self.url, self.key, attempts=1) as client:
            try:
                return "; ".join(client.stats()["missing"])
            except (CommandFailed, Unreachable) as error:
                return error.message

    def _doctor(self) -> str:
        """What `magnus doctor` says of servers and service, where it has a remedy."""
        # the checks behind the broker's look at models and take seconds
        checked = takewhile(lambda finding: finding.check != "model", findings(self.settings))
        return " ".join(f"{one.check}: {one.found}; {one.remedy}." for one in checked if one.remedy is not None)

    def _alarms(self) -> set[str]:
        """The alarms whose expressions hold, without the time for which they must hold."""
        page = self._get("/metrics")
        if page is None or not page.is_success:
            return {"MagnusUnreachable"}
        samples: dict[str, list[float]] = {}
        for family in text_string_to_metric_families(page.text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample.value)
        (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
        expressions = {rule["alert"]: rule["expr"] for rule in group["rules"] if rule["alert"] in self.alarms}
        del expressions["MagnusUnreachable"]  # Prometheus itself says whether it was answered
        return {alarm for alarm, expression in expressions.items() if holds(expression, samples)}

    def seconds_until(self, wanted: Mapping[str, str]) -> dict[str, float | None]:
        """The seconds until each signal said what is wanted and went on to; None for one that does not say it.

        Ends once all are right at the same time, at the latest WITHIN_S after its begin.
        """
        began, since = monotonic(), dict[str, float]()
        while True:
            self.said = self.says()
            now = monotonic() - began
            right = {signal for signal, pattern in wanted.items() if re.search(pattern, self.said[signal])}
            since = {signal: since.get(signal, now) for signal in right}
            if now > WITHIN_S or len(right) == len(wanted):
                return {signal: since.get(signal) for signal in wanted}

    def table(self, clear: str) -> str:
        """The seconds of each cell, with the right cells of all; those in the column `clear` are no cells."""
        names = [*HEALTHY, clear]
        rows = ["| fault | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
        for fault, row in self.rows.items():
            cells = (
                "" if name not in row else "**wrong**" if row[name] is None else f"{row[name]:.1f}" for name in names
            )
            rows.append(f"| {fault} | {' | '.join(cells)} |")
        told = [seconds for row in self.rows.values() for name, seconds in row.items() if name != clear]
        right = sum(seconds is not None for seconds in told)
        return "\n".join([*rows, f"{right} of {len(told)} cells are right within {WITHIN_S:.0f} s"])


def plain(page: str) -> str:
    """The text of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def holds(expression: str, samples: Mapping[str, list[float]]) -> bool:
    """Whether an alarm's expression holds, by the first condition of each of its alternatives."""
    for alternative in expression.split(" or "):
        whole, name, sign, bound = re.match(r"max(\()?(?: by \(\w+\) \()?(\w+)\) (==|>) (\d+)", alternative).groups()  # type: ignore[union-attr]
        values = samples.get(name, [])
        values = [max(values)] if whole and values else values
        if any(value == float(bound) if sign == "==" else value > float(bound) for value in values):
            return True
    return False
