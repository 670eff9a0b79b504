"""Every process shows in /metrics, and the alarms and the Grafana dashboard in docs/ ask for what is there.

Prometheus's own tool checks the alarms in `.ci/alarms`.
"""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from models import planner_state
from models.operations import process_heartbeats
from models.operations.fleet_use import ASK_THE_SAME
from models.operations.request_histograms import HISTOGRAMS
from models.operations.scaling_signals import ScalingSignal, write_signals
from models.planning.queue_snapshot import Decisions, QueueSnapshot, WaitingQueue, write_queue_snapshot
from models.registered_workers import REPAIR_ENGINE
from tests.integration.api_service import Api, finish
from tests.integration.database_stage import facts, insert_worker
from webapp.routes.monitoring import free_number

# What Prometheus 2.42 and 3.5 send: the first is in Debian 12.
ACCEPTED = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
)
DOCS = Path(__file__).parents[3] / "docs"
ALERTS, GRAFANA = DOCS / "prometheus" / "alerts.yml", DOCS / "grafana" / "magnus.json"


def rules() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def asked_in(expression: str) -> set[str]:
    return set(re.findall(r"\bmagnus_\w+", expression))


def labels_in(expression: str) -> set[str]:
    inside = " ".join(re.findall(r"\{(\w+)=", expression) + re.findall(r"by \(([\w, ]+)\)", expression))
    return set(re.findall(r"\w+", inside))


@pytest.fixture
def busy(api: Api) -> Api:
    """A service of which every process has said something."""
    insert_worker(api.sql, facts(model="words"))
    decisions, queue = Decisions(last_s=0.002), WaitingQueue(backlog_s=3.5)
    snapshot = QueueSnapshot(at=datetime.now(UTC), decisions=decisions, queue=queue)
    with api.engine.begin() as connection:
        for kind in process_heartbeats.NEEDED:
            process_heartbeats.write(connection, kind, "host:1", 0.0)
        write_queue_snapshot(connection, snapshot)
        planner_state.write_service_state(connection, "prediction", {"tau": 0.6})
        write_signals(connection, {"words": ScalingSignal(work_s=12.5, wanted=3)})
    for name in HISTOGRAMS:
        api.sql(
            """insert into histogram_buckets (name, model, tenant_class, tier, bucket, requests, total)
            values (:name, 'words', '1', 'default', 1, 2, 0.8), (:name, 'words', '1', 'default', 3, 4, 4.0)""",
            name=name,
        )
    finish(api, api.submit()["id"])
    api.submit()
    api.sql("insert into promise_hours select now(), 'acme', 'words', 'default', 0.9, 30, 20, 0, 0, 0, 10")
    api.sql(
        """update workers set report =
            '{"guessed_tokens": 9, "right_guesses": 4, "stopped_loops": 3, "saved_tokens": 70}'"""
    )
    return api


def shown(api: Api) -> dict[str, set[str]]:
    """The names of all samples, each with its labels."""
    page = api.client.get("/metrics").get_data(as_text=True)
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        samples.setdefault(family.name, set())
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def test_what_each_process_does_is_shown(busy: Api) -> None:
    page = busy.client.get("/metrics").get_data(as_text=True)
    for sample in (
        "magnus_planner_decision_seconds 0.002",
        "magnus_backlog_seconds 3.5",
        "magnus_prediction_tau 0.6",
        'magnus_worker_up{worker="w1"} 1.0',
        'magnus_guessed_tokens_total{worker="w1"} 9.0',
        'magnus_right_guesses_total{worker="w1"} 4.0',
        'magnus_stopped_loops_total{worker="w1"} 3.0',
        'magnus_loop_tokens_saved_total{worker="w1"} 70.0',
        'magnus_processes_alive{process="trainer"} 1.0',
        "magnus_answers_last_minute 1.0",
        "magnus_requests_unpredicted 1.0",
        'magnus_predicted_work_seconds{model="words"} 12.5',
        'magnus_workers_wanted{model="words"} 3.0',
        'magnus_promises_due{model="words",probability="0.9"} 30.0',
        'magnus_promises_kept{model="words",probability="0.9"} 20.0',
        'magnus_promises_short{model="words",probability="0.9"} 1.0',
    ):
        assert sample in page
    assert 'magnus_clock_ahead_seconds{process="beat"}' in page


@pytest.mark.parametrize("accept", ACCEPTED)
def test_prometheus_reads_one_exposition_in_the_format_that_it_asks_for(busy: Api, accept: str) -> None:
    answer = busy.client.get("/metrics", headers={"Accept": accept})
    assert answer.mimetype == "application/openmetrics-text"
    page = answer.get_data(as_text=True)
    assert page.count("# EOF") == 1
    families = {family.name for family in openmetrics_families(page)}
    assert {"magnus_http_seconds", "magnus_requests_finished", "magnus_workers_alive"} <= families


def test_a_histogram_has_the_buckets_of_vllms_of_the_same_name_with_counts_that_add_up(busy: Api) -> None:
    page = busy.client.get("/metrics").get_data(as_text=True)
    (stages,) = [
        one for one in text_string_to_metric_families(page) if one.name == "magnus_e2e_request_latency_seconds"
    ]
    assert {one.labels.get("tenant_class") for one in stages.samples} == {"1"}
    buckets = {one.labels["le"]: one.value for one in stages.samples if one.name.endswith("_bucket")}
    assert [buckets[edge] for edge in ("0.3", "0.5", "0.8", "1.0", "7680.0", "+Inf")] == [0, 2, 2, 6, 6, 6]
    assert {one.name: one.value for one in stages.samples if not one.name.endswith("_bucket")} == {
        "magnus_e2e_request_latency_seconds_count": 6,
        "magnus_e2e_request_latency_seconds_sum": 4.8,
    }


def test_a_planner_that_is_away_has_no_decision_time(api: Api) -> None:
    assert "magnus_planner_decision_seconds" not in shown(api)


def test_a_stopped_worker_is_down_and_has_no_heartbeat_to_wait_for(busy: Api) -> None:
    busy.sql("update workers set stopped_at = clock_timestamp()")
    page = busy.client.get("/metrics").get_data(as_text=True)
    assert 'magnus_worker_up{worker="w1"} 0.0' in page
    assert 'magnus_worker_heartbeat_age_seconds{worker="w1"}' not in page


SENT_AND_NOT_BEGUN = """with sent as (insert into batches (worker, policy, size, length, predicted_generation_length,
        estimated_s, assigned_at) values ('w1', 'test', 1, 1, 1, 1.0, clock_timestamp() - interval '11 s') returning id)
    update requests set status = 'in_progress', batch_id = sent.id from sent where status = 'queued'"""
NO_WORKER_TAKES = "no worker takes batches: each is drained, stopping, set aside, or takes no messages"
HINDERS = {
    "update workers set drained_at = clock_timestamp()": [NO_WORKER_TAKES],
    "update workers set stopping = true": [NO_WORKER_TAKES],
    """update workers set report = '{"fault": "ConnectError"}'""": [
        f"worker w1 is set aside; {REPAIR_ENGINE}",
        NO_WORKER_TAKES,
    ],
    "update workers set not_consuming_since = clock_timestamp()": [
        NO_WORKER_TAKES,
        "worker w1 takes no messages: compare its MAGNUS_REDIS_URL",
    ],
    "update service_state set updated_at = clock_timestamp() - interval '11 s' where name = 'planner'": [
        "the planner plans nothing: requests are accepted and kept, and none is given to a worker"
    ],
    """insert into workers (name, model, facts, longest_row_tokens, heartbeat_at)
        select 'w2', model, facts || '{"name": "w2"}', 1, clock_timestamp() - interval '1 min' from workers""": [
        "worker w2 is silent: others serve what it was given"
    ],
    """with given as (insert into batches (worker, policy, size, length, predicted_generation_length, estimated_s)
            values ('w1', 'test', 9, 1, 1, 1.0) returning id)
        insert into requests (id, tenant, application, instructions, input, input_tokens, prompt_tokens, limit_tokens,
            model, body, status, batch_id, output_text, output_tokens, finished_at)
        select 'e' || n, tenant, application, '', input, input_tokens, prompt_tokens, limit_tokens, model, body, status,
            given.id, '', 1, clock_timestamp()
        from requests, given, generate_series(1, 10) as n where status = 'completed'""": [
        f"worker w1 answers with nothing (10 of its last 10); {ASK_THE_SAME}"
    ],
    SENT_AND_NOT_BEGUN: ["1 requests were sent to workers that have not begun them for 10 s"],
}


@pytest.mark.parametrize("statement", HINDERS)
def test_a_living_process_that_does_nothing_makes_the_service_degraded(busy: Api, statement: str) -> None:
    assert busy.client.get("/readyz").get_json()["missing"] == []
    busy.sql(statement)
    ready = busy.client.get("/readyz").get_json()
    assert (ready["status"], ready["missing"]) == ("degraded", HINDERS[statement])
    assert busy.call("GET", "/v1/magnus/stats").json["missing"] == HINDERS[statement]
    page = busy.client.get("/metrics").get_data(as_text=True)
    assert ('magnus_worker_up{worker="w2"} 0.0' in page) == ("'w2'" in statement)
    assert ('magnus_worker_up{worker="w1"} 0.0' in page) == (NO_WORKER_TAKES in HINDERS[statement])


def test_alarms_and_dashboard_ask_for_metrics_and_labels_that_exist(busy: Api) -> None:
    samples = shown(busy)
    targets = [target["expr"] for panel in json.loads(GRAFANA.read_text())["panels"] for target in panel["targets"]]
    for expression in [rule["expr"] for rule in rules()] + targets:
        asked = asked_in(expression)
        assert asked
        assert asked <= samples.keys() | {"magnus_requests_finished_total"}
        known = set().union(*(samples.get(name, {"status"}) for name in asked)) | {"status"}
        assert labels_in(expression) <= known


def test_no_alarm_and_no_panel_doubles_a_figure_that_every_web_process_tells() -> None:
    targets = [target["expr"] for panel in json.loads(GRAFANA.read_text())["panels"] for target in panel["targets"]]
    for expression in [rule["expr"] for rule in rules()] + targets:
        told_by_all = re.sub(
            r"sum\((?:increase|rate)\([^()]*\)\)|sum by \([^()]*\) \(rate\(magnus_http_[^()]*\)\)", "", expression
        )
        once = re.sub(r"max(?: by \([^()]*\))? ?\((?:[^()]*|\w+\([^()]*\))\)|absent\(\w+\)", "", told_by_all)
        assert "magnus_" not in once, expression


def test_the_dashboard_shows_every_metric(busy: Api) -> None:
    named = asked_in(GRAFANA.read_text())
    ours = {name for name in shown(busy) if name.startswith("magnus_")}
    base = {re.sub(r"_(bucket|count|sum|total|created)$", "", name) for name in ours | named}
    assert base == {re.sub(r"_(bucket|count|sum|total|created)$", "", name) for name in named}


def test_every_alarm_is_explained_to_operators_and_no_other() -> None:
    explained = re.findall(r"^\| `(Magnus\w+)` \|", (DOCS / "operations" / "watch.md").read_text(), re.MULTILINE)
    assert explained == [rule["alert"] for rule in rules()]


def test_every_alarm_is_seen_to_go_off() -> None:
    tests = yaml.safe_load((ALERTS.parent / "alerts_test.yml").read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}


def test_the_figures_have_one_address_which_a_proxy_can_hide(api: Api) -> None:
    assert api.client.get("/metrics").status_code == 200
    assert api.client.get("/metrics/").status_code == 404


def test_a_web_process_counts_on_in_the_file_of_one_that_was_killed(tmp_path: Path) -> None:
    dies = f"""import os; from pathlib import Path; from webapp.routes.monitoring import free_number
print(free_number(Path({str(tmp_path)!r})), flush=True); os.kill(os.getpid(), 9)"""

    def killed() -> str:
        said = subprocess.run([sys.executable, "-c", dies], capture_output=True, text=True, check=False, timeout=60)
        assert said.returncode == -9, said.stderr
        return said.stdout.strip()

    assert [killed(), killed()] == ["0", "0"]
    assert free_number(tmp_path) == 0
    assert [killed(), killed()] == ["1", "1"]  # a second process beside a living one
