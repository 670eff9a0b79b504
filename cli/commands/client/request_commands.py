"""`magnus submit`, `status`, `why` and `cancel`: requests through the API, for people and scripts."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cli.api_client import Client, Json, output_text
from cli.hosting.service_access import client_for, service_options, with_client
from cli.output import CommandFailed, json_option, make_console, print_result, table

ANSWERED = ("completed", "incomplete")
WATCH_EVERY_S = 1.0  # the service's own figures change every half a second


@click.command()
@click.argument("input", nargs=-1)
@click.option("--instructions", "-i", help="What to do with the input.")
@click.option("--application", help="Name of this kind of request, for the statistics.")
@click.option("--model", help="Model to ask; by default the first one that is served.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Most tokens of the answer.")
@click.option("--temperature", type=click.FloatRange(0), help="0, the default, is greedy.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first, where the policy honours it.")
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, min_open=True),
    help="Fail the request if it has not started within these seconds.",
)
@click.option("--file", "file", type=click.File(), help="JSON lines, each a request body; - reads standard input.")
@click.option("--wait", is_flag=True, help="Wait for the answers and print them.")
@json_option
@with_client
def submit(client: Client, file: Any, wait: bool, as_json: bool, **fields: Any) -> None:
    """Submit a request, or many from a file.

    Prints their ids, or with --wait their answers. INPUT is the text, its words joined by spaces; without it, and
    without --file, standard input is read.
    """
    bodies = _from_lines(file) if file else [_body(fields)]
    model = fields["model"] or client.model()
    responses = [client.create({"model": model, **body}) for body in bodies]
    if wait:
        responses = [client.wait(response["id"]) for response in responses]
    for response in responses:
        print_result(response, as_json, _answer_line if wait else lambda response: response["id"])
    if wait and any(response["status"] not in ANSWERED for response in responses):
        raise CommandFailed("not every request was answered")


@click.command()
@click.argument("ids", nargs=-1)
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@json_option
@service_options
def status(ids: tuple[str, ...], watch: bool, as_json: bool, **service: Any) -> None:
    """Show the status of requests, or without IDS that of the service."""
    if watch and as_json:
        raise click.UsageError("--watch is for people, --json for scripts: choose one")
    with client_for(**service) as client:

        def read() -> list[Json]:
            return [client.retrieve(request_id) for request_id in ids] if ids else [client.stats()]

        def render(facts: list[Json]) -> Table:
            return _requests_table(facts) if ids else _service_table(facts[0], client.url)

        print_result(read(), as_json, render, lines=True) if not watch else _watch(lambda: render(read()))


def _watch(render: Callable[[], Table]) -> None:
    """Shows a table again every second until Ctrl-C."""
    try:
        with Live(render(), console=make_console(), auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_EVERY_S)
                live.update(render(), refresh=True)
    except KeyboardInterrupt:
        sys.exit(130)


@click.command()
@click.argument("id")
@json_option
@with_client
def why(client: Client, id: str, as_json: bool) -> None:
    """Say why a request is not running.

    Answers, in the order in which they are decided, the questions that a waiting request passes; the one marked with
    an arrow is what it waits for.
    """
    print_result(client.call("GET", "responses", id, "why"), as_json, _reasons_table)


def _reasons_table(reasons: Json) -> Table:
    rows = [("→" if one["blocks"] else "", one["question"], escape(one["sentence"])) for one in reasons["answers"]]
    return table(("", "question", "answer"), rows, title=f"{reasons['id']} is {reasons['status']}")


@click.command()
@click.argument("ids", nargs=-1, required=True)
@json_option
@with_client
def cancel(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel requests, whether they wait or run."""
    for request_id in ids:
        print_result(client.cancel(request_id), as_json, lambda response: f"{response['id']}  {response['status']}")


def _body(fields: dict[str, Any]) -> Json:
    text = " ".join(fields["input"]) or sys.stdin.read()
    body: Json = {"input": text}
    body |= {name: fields[name] for name in ("instructions", "max_output_tokens", "temperature") if fields[name]}
    if fields["application"]:
        body["metadata"] = {"application": fields["application"]}
    extras = {name: fields[name] for name in ("priority", "deadline_s") if fields[name] is not None}
    return body | ({"magnus": extras} if extras else {})


def _from_lines(file: Any) -> list[Json]:
    bodies = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
        except ValueError as error:
            raise click.UsageError(f"line {number} of {file.name} is no JSON: {error}") from error
        if not isinstance(body, dict) or "input" not in body:
            raise click.UsageError(f"line {number} of {file.name} is no request body: it needs an `input`")
        bodies.append(body)
    return bodies


def _answer_line(response: Json) -> str:
    if response["status"] in ANSWERED:
        return output_text(response)
    error = response["error"] or {}
    return f"{response['id']} {response['status']} {error.get('message', '')}".rstrip()


def _requests_table(responses: list[Json]) -> Table:
    columns = ("id", "status", "position", "expected in", "predicted", "so far", "batch", "worker", "attempts")
    rows = []
    for response in responses:
        magnus = response["magnus"]
        expected = None if magnus["eta_s"] is None else f"{max(0.0, magnus['eta_s']):.1f} s"
        progress = (magnus[name] for name in ("predicted_tokens", "tokens_so_far", "batch", "worker", "attempts"))
        rows.append((response["id"], response["status"], magnus["queue_position"], expected, *progress))
    return table(columns, rows)


def _model_of_worker(one: Json) -> str:
    others = [f"{name} in {seconds:.1f} s" for name, seconds in one["loadable"].items() if name != one["model"]]
    loads = f", loads {one['changes_to']}" if one["changes_to"] else ""
    return escape(f"{one['model']}{loads}; {', '.join(others)}; {one['changes']} changes")


def _service_table(stats: Json, url: str) -> Table:
    idle = stats["worker_idle_share"]
    rows = [
        ("policy", stats["policy"]),
        ("waiting / in progress", f"{stats['queued']} / {stats['in_progress']}"),
        ("workers alive", stats["workers_alive"]),
        *((f"model of {escape(one['worker'])}", _model_of_worker(one)) for one in stats.get("models", ())),
        *(("[red]missing[/red]", f"[red]{escape(problem)}[/red]") for problem in stats["missing"]),
        ("batches in the last minute", f"{stats['batches']}, mean size {stats['mean_batch_size'] or 0:.1f}"),
        ("valid tokens in the last minute", stats["valid_tokens"]),
        ("idle share of the workers", None if idle is None else f"{idle:.0%}"),
    ]
    return table(("fact", "now"), rows, title=url, show_header=False)
