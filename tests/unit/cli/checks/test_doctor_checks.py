"""The doctor's checks name a remedy where something has to be done, and none where nothing has."""

import json
import shutil
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cli.checks.doctor_checks import Finding, answer_findings, findings
from settings import BUNDLED_MODEL, Settings
from tests.unit.inference.published_templates import QWEN3


def by_check(settings: Settings) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for finding in findings(settings):
        found[finding.check] = finding
        if finding.check == "Redis":  # the checks behind it load the model and torch
            break
    return found


def test_a_taken_port_is_found_with_the_setting_that_changes_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = by_check(Settings(state_dir=tmp_path, port=port, flower_port=0))["port of the API"]
    assert finding.remedy == "stop what uses it, or set MAGNUS_PORT"


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}\n')

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_the_port_of_our_own_web_process_is_no_fault(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Healthy) as server:
        threading.Thread(target=server.handle_request).start()
        finding = by_check(Settings(state_dir=tmp_path, port=server.server_port, flower_port=0))["port of the API"]
    assert finding == Finding("port of the API", f"Magnus listens at 127.0.0.1:{server.server_port}")


def test_the_service_that_clients_are_told_of_is_asked_whether_it_answers(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, port=0, flower_port=0)
    with HTTPServer(("127.0.0.1", 0), _Healthy) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.handle_request).start()
        answers = by_check(settings.model_copy(update={"url": f"{url}/v1/"}))["service"]
    assert answers == Finding("service", f"answers at {url}")
    gone = by_check(settings.model_copy(update={"url": url}))["service"]
    assert gone.found == f"does not answer at {url}"
    assert gone.remedy is not None
    assert "magnus run web" in gone.remedy


def test_what_a_models_own_files_say_of_its_answers_is_shown(tmp_path: Path) -> None:
    shutil.copy(BUNDLED_MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(QWEN3)
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "no_repeat_ngram_size": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    sampling, template = answer_findings(Settings(model=str(tmp_path)))
    assert sampling.found.startswith("temperature 0.6, top_k 20 where a client")
    assert "no_repeat_ngram_size, which is not honoured" in sampling.found
    assert template.found == (
        "from chat_template.jinja: thinking, tools; variables for chat_template_kwargs: enable_thinking"
    )
    off, _ = answer_findings(Settings(model=str(tmp_path), generation_config="none"))
    assert off.found.startswith("greedy where a client")
