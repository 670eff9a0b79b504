"""`magnus submit`, `status` and `cancel`: the API's client for people and scripts."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.live import Live
from rich.table import Table

from cli.api_client import Client, Json, output_text
from cli.output import CommandFailed, make_console
from cli.service_access import client_of, json_option, service_options

WATCH_EVERY_S = 1.0  # what the service says of itself is half a second old anyway


@click.command()
@click.argument("input", nargs=-1)
@click.option("--instructions", "-i", help="What to do with the input.")
@click.option("--application", help="Name of this kind of request, for the statistics.")
@click.option("--model", help="The first model that is served, if not given.")
@click.option("--max-output-tokens", type=click.IntRange(1), help="Most tokens of the answer.")
@click.option("--temperature", type=click.FloatRange(0), help="0, the default, is greedy.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first, where the policy honours it.")
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), help="Seconds for which the answer is of use.")
@click.option("--file", "file", type=click.File(), help="JSON lines, each a request body; - reads standard input.")
@click.option("--wait", is_flag=True, help="Wait for the answers and print them.")
@json_option
@service_options
def submit(
    file: Any, wait: bool, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None, **fields: Any
) -> None:
    """Submit a request, or many from a file, and print their ids, or with --wait their answers.

    INPUT is the text, its words joined; without it, and without --file, standard input is read.
    """
    with client_of(url, api_key, state_dir) as client:
        bodies = _from_lines(file) if file else [_body(fields)]
        model = fields["model"] or client.model()
        responses = [client.create({"model": model, **body}) for body in bodies]
        if wait:
            responses = [client.wait(response["id"]) for response in responses]
        for response in responses:
            click.echo(json.dumps(response) if as_json else _answer_line(response) if wait else response["id"])
    if wait and any(response["status"] not in ("completed", "incomplete") for response in responses):
        raise CommandFailed("not every request was answered")


@click.command()
@click.argument("ids", nargs=-1)
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@json_option
@service_options
def status(
    ids: tuple[str, ...], watch: bool, as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None
) -> None:
    """Show how requests stand, or without IDS what the service is doing."""
    if watch and as_json:
        raise click.UsageError("--watch is for people, --json for scripts: choose one")
    with client_of(url, api_key, state_dir) as client:
        if as_json:
            for facts in [client.retrieve(request_id) for request_id in ids] if ids else [client.stats()]:
                click.echo(json.dumps(facts))
            return
        table = partial(_status_now, client, ids)
        if not watch:
            make_console().print(table())
            return
        try:
            with Live(table(), console=make_console(), auto_refresh=False) as live:
                while True:
                    time.sleep(WATCH_EVERY_S)
                    live.update(table(), refresh=True)
        except KeyboardInterrupt:
            sys.exit(130)


@click.command()
@click.argument("ids", nargs=-1, required=True)
@json_option
@service_options
def cancel(ids: tuple[str, ...], as_json: bool, url: str | None, api_key: str | None, state_dir: Path | None) -> None:
    """Cancel requests: at once what waits, at the next chance what runs."""
    with client_of(url, api_key, state_dir) as client:
        for request_id in ids:
            response = client.cancel(request_id)
            click.echo(json.dumps(response) if as_json else f"{request_id}  {response['status']}")


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
    if response["status"] in ("completed", "incomplete"):
        return output_text(response)
    error = response["error"] or {}
    return f"{response['id']} {response['status']} {error.get('message', '')}".rstrip()


def _status_table(responses: list[Json]) -> Table:
    table = Table("id", "status", "position", "expected in", "predicted", "so far", "batch", "worker", "attempts")
    for response in responses:
        magnus = response["magnus"]
        expected = "" if magnus["eta_s"] is None else f"{max(0.0, magnus['eta_s']):.1f} s"
        cells = (magnus["queue_position"], expected, magnus["predicted_tokens"], magnus["tokens_so_far"])
        last = (magnus["batch"], magnus["worker"], magnus["attempts"])
        table.add_row(
            response["id"], response["status"], *("" if cell is None else str(cell) for cell in (*cells, *last))
        )
    return table


def _status_now(client: Client, ids: tuple[str, ...]) -> Table:
    return _status_table([client.retrieve(request_id) for request_id in ids]) if ids else _service_table(client)


def _service_table(client: Client) -> Table:
    stats = client.stats()
    table = Table("fact", "now", title=client.url, show_header=False)
    table.add_row("policy", stats["policy"])
    table.add_row("waiting / in progress", f"{stats['queued']} / {stats['in_progress']}")
    table.add_row("workers alive", str(stats["workers_alive"]))
    for problem in stats["missing"]:
        table.add_row("missing", problem, style="red")
    table.add_row("batches in the last minute", f"{stats['batches']}, mean size {stats['mean_batch_size'] or 0:.1f}")
    table.add_row("valid tokens in the last minute", str(stats["valid_tokens"]))
    idle = stats["worker_idle_share"]
    table.add_row("idle share of the workers", "" if idle is None else f"{idle:.0%}")
    return table
