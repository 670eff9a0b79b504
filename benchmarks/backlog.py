"""Measures the planner's decision times and its forecasts while thousands of requests wait and two workers serve.

    python -m benchmarks.backlog [--policies fusion,magnus] [--waiting 20000] [--seconds 20] [--json F]

Each policy gets a new service. The requests enter the queue at once, as they would after an hour without workers.
"""

import statistics
import threading
import time

import click
from sqlalchemy import text

from benchmarks.harness import Json, Results, json_option, percentile, print_table, until
from benchmarks.inputs.request_sources import MEDIAN_WORDS
from benchmarks.live.fresh_service import ServiceOptions, fresh_service
from benchmarks.service_start import connection_to
from cli.demo_workload import TRAINING_EXAMPLES, training_examples
from cli.option_types import CommaSeparated
from cli.service_access import POLICIES
from inference.prompt_format import load_prompt_format
from inference.toy.toy_applications import ToyRequest, toy_requests
from settings import BUNDLED_MODEL

POLICY_LIST = CommaSeparated(click.Choice(POLICIES))
COLUMNS = {
    "policy": "policy",
    "waiting": "waiting",
    "decisions seen": "decisions",
    "P50 ms": "decision_ms_p50:.1f",
    "P99 ms": "decision_ms_p99:.1f",
    "max ms": "decision_ms_max:.1f",
    "forecasts' share": "forecasting_share:.1%",
}
SAMPLE_EVERY_S = 0.1  # below the half second between two snapshots of the planner
PREDICTED_WITHIN_S = 300.0  # any value well above the time of 20,000 predictions works

INSERT = text("""
    insert into requests (id, tenant, model, application, instructions, input, body, prompt_tokens, input_tokens,
        limit_tokens)
    values (:id, 'default', :model, :application, :instructions, :input,
        '{"metadata": {}, "background": true, "sampling": {"temperature": 0, "top_p": 1, "top_k": 0, "seed": null},
          "stop": []}', :prompt_tokens, :input_tokens, 256)
""")
UNPREDICTED = text("select count(*) from requests where status = 'queued' and predicted_tokens is null")
PLANNER = text("""
    select value->>'waiting' as waiting, (value->>'decision_s')::float8 as decision_s,
        (value->>'forecasting_s')::float8 as forecasting_s, updated_at
    from service_state where name = 'planner'
""")


@click.command(help=__doc__)
@click.option("--policies", type=POLICY_LIST, default="fusion,baton,magnus,scls", show_default=True)
@click.option("--waiting", default=20_000, show_default=True, help="Requests in the queue.")
@click.option("--seconds", default=20.0, show_default=True, help="How long decisions are watched.")
@json_option
def main(policies: list[str], waiting: int, seconds: float, results: Results) -> None:
    """Fill the queue, sample decision times, print and write them."""
    rows = [measured(name, waiting, seconds) for name in policies]
    print_table(rows, COLUMNS)
    results.write(rows)


def measured(policy: str, waiting: int, seconds: float) -> Json:
    """Measure decision times under this policy in milliseconds, from the planner's snapshots."""
    examples = training_examples(TRAINING_EXAMPLES, [], 0)
    with fresh_service(policy, ServiceOptions(2, "64MiB"), examples) as (service, _):
        pause = threading.Event()
        with connection_to(service.database_url) as connection:
            connection.execute(INSERT, table_rows(toy_requests(waiting, seed=0, median_words=MEDIAN_WORDS)))
            connection.commit()
            connection.execution_options(isolation_level="AUTOCOMMIT")
            if not until(lambda: not connection.execute(UNPREDICTED).scalar_one(), PREDICTED_WITHIN_S):
                raise click.ClickException(f"not all requests were predicted within {PREDICTED_WITHIN_S:.0f} s")
            seen = {}
            watched_until = time.monotonic() + seconds
            while time.monotonic() < watched_until:
                snapshot = connection.execute(PLANNER).one()
                seen[snapshot.updated_at] = snapshot
                pause.wait(SAMPLE_EVERY_S)
    times = sorted(1000 * snapshot.decision_s for snapshot in seen.values())
    first, last = seen[min(seen)], seen[max(seen)]
    watched_s = (last.updated_at - first.updated_at).total_seconds()
    return {
        "policy": policy,
        "waiting": int(last.waiting),
        "decisions": len(times),
        "decision_ms_p50": statistics.median(times),
        "decision_ms_p99": percentile(times, 0.99),
        "decision_ms_max": times[-1],
        "forecasting_share": (last.forecasting_s - first.forecasting_s) / watched_s,
    }


def table_rows(requests: list[ToyRequest]) -> list[Json]:
    """Make rows for the table of requests."""
    prompts = load_prompt_format(str(BUNDLED_MODEL))
    return [
        {
            "id": f"resp_{n:032x}",
            "model": prompts.name,
            "application": request.application,
            "instructions": request.instruction,
            "input": request.input,
            "prompt_tokens": len(prompts.encode(request.instruction, request.input)),
            "input_tokens": prompts.count(request.input),
        }
        for n, request in enumerate(requests)
    ]


if __name__ == "__main__":
    main()
