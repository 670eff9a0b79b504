"""Ended requests become traces in a collector: each once, with its stages, without its texts."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tasks.chores.trace_export import export_traces, trace_id
from tests.integration.database_stage import Stage

ID = "resp_0123456789abcdef0123456789abcdef"


class Collector(ThreadingHTTPServer):
    """A collector that keeps what it takes, while it takes anything."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.spans: list[dict[str, Any]] = []
        self.sent = ""
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.server.status == 200:
            self.server.sent += body
            for resource in json.loads(body)["resourceSpans"]:
                self.server.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


@pytest.fixture
def marked(stage: Stage, collector: Collector) -> Stage:
    """A service that began to export an hour ago."""
    export_traces(stage.database, collector.url)
    stage.sql("""update service_state set value = jsonb_build_object('at', clock_timestamp() - interval '1 h', 'id', '')
        where name = 'traced'""")
    stage.worker("w1")
    return stage


def ended(stage: Stage, id: str = ID, status: str = "completed", ago_s: float = 60.0) -> None:
    """A request that arrived 3 s before its end and was served for the last of them."""
    stage.request(id, input="a secret", status=status, output_tokens=8, finish_reason="eos", finished_at="now")
    stage.sql(
        """update requests set finished_at = clock_timestamp() - make_interval(secs => :ago),
            started_at = clock_timestamp() - make_interval(secs => :ago + 1),
            arrived_at = clock_timestamp() - make_interval(secs => :ago + 3) where id = :id""",
        id=id,
        ago=ago_s,
    )


def seconds(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def test_a_request_is_one_trace_from_arrival_to_answer_with_its_stages(marked: Stage, collector: Collector) -> None:
    ended(marked)
    export_traces(marked.database, collector.url)
    spans = {span["name"].replace("chat small", "request"): span for span in collector.spans}
    assert {span["traceId"] for span in collector.spans} == {"0123456789abcdef0123456789abcdef"}
    assert spans["wait"]["parentSpanId"] == spans["serve"]["parentSpanId"] == spans["request"]["spanId"]
    assert "parentSpanId" not in spans["request"]
    assert [round(seconds(spans[name]), 2) for name in ("request", "wait", "serve")] == [3.0, 2.0, 1.0]
    told = {one["key"]: one["value"] for one in spans["request"]["attributes"]}
    assert told["gen_ai.usage.output_tokens"] == {"intValue": "8"}
    assert told["gen_ai.response.finish_reasons"] == {"arrayValue": {"values": [{"stringValue": "stop"}]}}
    assert told["gen_ai.operation.name"] == {"stringValue": "chat"}
    assert "error.type" not in told
    assert ID in collector.sent
    assert "secret" not in collector.sent


def test_a_request_is_exported_once_and_none_is_left_out(marked: Stage, collector: Collector) -> None:
    ids = [f"resp_{number:032x}" for number in range(1200)]  # more than one call of the collector takes
    for one in ids[:3]:
        ended(marked, one)
    marked.sql(
        """insert into requests select (jsonb_populate_record(r, jsonb_build_object('id', 'resp_' || lpad(to_hex(n), 32,
            '0')))).* from requests r, generate_series(3, 1199) as n where id = :id""",
        id=ids[0],
    )  # which all ended at the same instant
    for _ in range(2):
        export_traces(marked.database, collector.url)
    assert sorted(span["traceId"] for span in collector.spans if span["name"] == "chat small") == [
        trace_id(one) for one in ids
    ]


def test_what_a_collector_did_not_take_is_sent_again(marked: Stage, collector: Collector) -> None:
    ended(marked)
    collector.status = 503
    export_traces(marked.database, collector.url)
    assert collector.spans == []
    collector.status = 200
    export_traces(marked.database, collector.url)
    assert len(collector.spans) == 3


def test_a_request_that_was_never_served_has_waited_only_and_a_failed_one_says_so(marked: Stage, collector: Collector):
    ended(marked, status="failed")
    error = """{"code": "deadline_exceeded", "message": "a secret"}"""
    marked.sql(
        "update requests set started_at = null, finish_reason = null, error = cast(:error as jsonb)", error=error
    )
    export_traces(marked.database, collector.url)
    whole, waiting = collector.spans
    assert whole["status"] == {"code": 2}
    assert {"key": "error.type", "value": {"stringValue": "deadline_exceeded"}} in whole["attributes"]
    assert seconds(waiting) == pytest.approx(3.0, abs=0.01)


def test_what_ended_before_the_first_export_is_not_traced(stage: Stage, collector: Collector) -> None:
    ended(stage)
    for _ in range(2):
        export_traces(stage.database, collector.url)
    assert collector.spans == []
