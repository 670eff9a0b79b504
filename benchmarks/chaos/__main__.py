"""Measures the service's promises by breaking it: `python -m benchmarks.chaos [--json F] [--only NAME …] [--short]`.

Each promise breaks a whole `magnus up` from outside: real processes and signals, a real Postgres and broker, clients
over HTTP. A row has the promise, its bound, the measured value and whether the bound held. The long form (`make chaos`)
takes three quarters of an hour and then twice half an hour at load; the short one is part of `make test`.
"""

import signal
import sys
from dataclasses import asdict, replace

import click

from benchmarks.chaos.promise_rows import LONG, SHORT, Row
from benchmarks.chaos.promise_runner import PROMISES, PromiseRunner
from benchmarks.chaos.servers import GivenServers
from benchmarks.harness import Results, json_option
from cli.hosting.supervisor import stop_signals


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(PROMISES)), help="Measure this one; may be repeated.")
@click.option("--short", is_flag=True, help="Small counts and wide bounds on rates: some five minutes, no soak.")
@click.option("--leaving-minutes", type=click.FloatRange(1), help="How long workers leave, one each minute.")
@click.option("--soak-minutes", type=click.FloatRange(0), help="Length of the soak; 0: none.")
@click.option("--postgres-url", help="Measure on this Postgres, whose role may create databases; with --redis-url.")
@click.option("--redis-url", help="Measure on this Redis database, which is emptied; with --postgres-url.")
@json_option
def main(
    only: tuple[str, ...],
    short: bool,
    leaving_minutes: float | None,
    soak_minutes: float | None,
    postgres_url: str | None,
    redis_url: str | None,
    results: Results,
) -> None:
    """Measure, print, write; the exit status is 1 if a promise does not hold."""
    if (postgres_url is None) != (redis_url is None):
        raise click.UsageError("--postgres-url and --redis-url go together")
    given = GivenServers(postgres_url, redis_url) if postgres_url and redis_url else None
    size = SHORT if short else LONG
    if soak_minutes is not None:
        size = replace(size, soak_s=60 * soak_minutes, warm_up_s=10 * soak_minutes)
    if leaving_minutes is not None:
        size = replace(size, leave_s=60 * leaving_minutes, leave_every_s=60.0)
    names = [name for name in PROMISES if (not only or name in only) and (name != "soak" or size.soak_s)]
    names = [name for name in names if given is None or PROMISES[name].may_be_given_servers]
    rows: list[Row] = []
    for stop_signal in stop_signals():  # a shell that starts this in the background has SIGINT ignored
        signal.signal(stop_signal, signal.default_int_handler)
    seconds = dict.fromkeys(names, 0.0)
    with PromiseRunner(size, given) as runner:
        for number, name in enumerate(names, 1):
            click.echo(f"[{number}/{len(names)}] {name} …", err=True)
            measured = runner.run(PROMISES[name])
            seconds[name] = runner.seconds
            click.echo(f"[{number}/{len(names)}] {name} took {runner.seconds:.0f} s", err=True)
            rows += _printed(measured, results, rows)
        rows += _printed(runner.renew(), results, rows)
    took_s = sum(seconds.values()) - sum(seconds.get(name, 0.0) for name in ("leaving", "soak"))
    if not only:
        budget = Row(
            "time of all promises but leaving and soak",
            f"{size.budget_s:.0f} s",
            f"{took_s:.0f} s",
            took_s <= size.budget_s,
        )
        rows += _printed([budget], results, rows)
    held = sum(row.ok for row in rows)
    click.echo(f"{held} of {len(rows)} rows hold, in {took_s / 60:.1f} min without leaving and soak")
    sys.exit(held < len(rows))


def _printed(measured: list[Row], results: Results, before: list[Row]) -> list[Row]:
    """Print rows as soon as they are measured, and write all rows so far."""
    for row in measured:
        verdict = "holds" if row.ok else "FAILS"
        click.echo(f"{verdict}  {row.promise}\n       bound: {row.bound}; measured: {row.measured}")
    results.write([asdict(row) for row in [*before, *measured]])
    return measured


if __name__ == "__main__":
    main()
