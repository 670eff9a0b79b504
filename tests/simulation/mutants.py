"""Breaks the product in one place at a time, and counts how many of these mutants the simulation finds.

`python -m tests.simulation.mutants --minutes 2` works on a copy of the repository, and gives each mutant that long.
"""

# ruff: noqa: E501  # a line for each mutant

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change of one file: the first `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str = ""


LEASES, RESULTS, REQUEUE = "models/leasing/leases.py", "models/leasing/batch_results.py", "models/leasing/requeue.py"
CLAIMS, LEAD = "models/planning/batch_claims.py", "models/planning/leadership.py"
PROGRESS, FEED, JOBS = "models/bulk/bulk_progress.py", "models/bulk/bulk_feed.py", "tasks/chores/job_progress.py"
RECONCILER, RECOVERY = "models/upkeep/reconciler.py", "tasks/planning/recovery.py"
WRITER = "tasks/serving/results/result_writer.py"
INSERTED = '    connection.execute(\n        text("""\n            update bulk_jobs set next_line = :next_line, queued'
COMMITTED = "    connection.connection.driver_connection.commit()\n"
MUTANTS = (
    Mutant("a batch is taken in any state", LEASES, "and worker = :worker and status = 'assigned'", "and worker = :worker"),
    Mutant("lost leases count as held", LEASES, "where b.status = 'running' order by b.id for update of b\n        \"\"\",\n        {\n            \"ids\"", "order by b.id for update of b\n        \"\"\",\n        {\n            \"ids\""),
    Mutant("held leases are not locked", LEASES, "where b.status = 'running' order by b.id for update of b\n        \"\"\",\n        {\n            \"ids\"", "where b.status = 'running' order by b.id\n        \"\"\",\n        {\n            \"ids\""),
    Mutant("answers come in any state", RESULTS, "bigint and r.status = 'in_progress'\n    returning (r", "bigint\n    returning (r"),
    Mutant("an answer forgets the cancel", RESULTS, "case when r.cancel_requested_at is null then a.status else 'cancelled' end", "a.status"),
    Mutant("rows return in any state", RESULTS, "bigint and r.status = 'in_progress'\n    returning r.tenant", "bigint\n    returning r.tenant"),
    Mutant("rows return to any batch", RESULTS, "r.id = a.request_id and r.batch_id = (a.lease->>'batch_id')::bigint and r.status = 'in_progress'\n    returning r.tenant", "r.id = a.request_id and r.status = 'in_progress'\n    returning r.tenant"),
    Mutant("a returned row keeps its epoch", RESULTS, "when a.blamed = '' then 1 else 0 end, planner_epoch = 0,", "when a.blamed = '' then 1 else 0 end,"),
    Mutant("a returned row forgets the cancel", RESULTS, "status = case when r.cancel_requested_at is not null then 'cancelled' when a.given_up", "status = case when a.given_up"),
    Mutant("a closed batch keeps its requests", RESULTS, "    requeue(connection, unfinished)\n", ""),
    Mutant("usage counts each answer for the day alone", "models/tenants/usage.py", "requests = old.requests + excluded.requests", "requests = excluded.requests"),
    Mutant("any request of a lost batch is queued", REQUEUE, "where batch_id = b.id and status = 'in_progress' for update", "where batch_id = b.id for update"),
    Mutant("a requeued request keeps its epoch", REQUEUE, "r.batch_id::text end,\n                planner_epoch = 0", "r.batch_id::text end"),
    Mutant("a requeued request forgets the cancel", REQUEUE, "case when cancelled then 'cancelled' when guilty", "case when guilty"),
    Mutant("attempts are taken back twice", REQUEUE, "else r.attempts - 1 end", "else r.attempts - 2 end"),
    Mutant("lost batches are not locked", REQUEUE, "({lost} order by b.id for update of b)", "({lost} order by b.id)"),
    Mutant("everything ends after one failure", REQUEUE, "count(*) over (partition by first_batch) = 1", "true"),
    Mutant("another process is deregistered", "models/leasing/worker_registration.py", "where name = :name and extract(epoch from started_at)::float8 = :incarnation returning name", "where name = :name returning name"),
    Mutant("claims any state", CLAIMS, "and r.status = 'queued' and r.planner_epoch", "and r.planner_epoch"),
    Mutant("claims any epoch", CLAIMS, "and r.status = 'queued' and r.planner_epoch = :epoch", "and r.status = 'queued'"),
    Mutant("claims do not lock", CLAIMS, "statement_timestamp())\n                for update of r", "statement_timestamp())"),
    Mutant("claims without counting attempts", CLAIMS, "attempts = r.attempts + 1,\n", ""),
    Mutant("the lead is taken before it expires", LEAD, "if not (present.expired or given_up):\n            return None", "given_up = True"),
    Mutant("the lead has no fence", LEAD, "fence = l.fence + 1", "fence = l.fence"),
    Mutant("lost batches stay lost", RECOVERY, "lost = reconciler.lose_expired_batches(connection, rules.lease_s)", "lost: list[str] = []"),
    Mutant("expired batches of any state are lost", RECONCILER, "where b.status in ('assigned', 'running')\n            and (w.gone or", "where (w.gone or"),
    Mutant("events under lost leases are written", WRITER, "events = [event for event in events if event.lease in held.leases]", "events = list(events)"),
    Mutant("a cancel ends what runs", "models/client_requests.py", "case when status = 'queued' then 'cancelled' else status end", "'cancelled'"),
    Mutant("a quota is counted by nobody alone", "models/tenants/tenant_limits.py", '    check_alone(session, tenant, "priority requests")\n', ""),
    Mutant("a key makes two requests", "models/new_requests.py", "on conflict (tenant, idempotency_key) where idempotency_key is not null do nothing", "on conflict (tenant, idempotency_key) where idempotency_key is not null do update set idempotency_key = null"),
    Mutant("a paused job is fed", FEED, "and status in ('validating', 'in_progress') and paused_at is null\n            for update", "and status in ('validating', 'in_progress')\n            for update"),
    Mutant("lines are read twice", FEED, "update bulk_jobs set next_line = :next_line, queued", "update bulk_jobs set next_line = :next_line - 1, queued"),
    Mutant("a job ends before its lines", JOBS, "    if counts.unfinished:\n        return None\n", ""),
    Mutant("some lines are not told", PROGRESS, "left = f\"exists({UNTOLD.format(lock='offset 0')})\"", 'left = "false"'),
    Mutant("told lines keep their epoch", PROGRESS, "tier = t.service_tier, planner_epoch = 0", "tier = t.service_tier"),
    Mutant("a failed delivery is given up", "models/webhooks/webhook_deliveries.py", "then clock_timestamp() + make_interval(secs => r.retry_in_s) end", "then null::timestamptz end"),
    Mutant("the lead is taken by two", LEAD, "                for update skip locked\n"),
    Mutant("a line's request is committed before its place", FEED, INSERTED, COMMITTED + INSERTED),
    Mutant("a batch is lost before its requests return", REQUEUE, "    return requeue(connection, blamed(", COMMITTED + "    return requeue(connection, blamed("),
    Mutant("a twin that leads keeps its epoch", "models/planning/twins.py", "update requests set twin_of = null, planner_epoch = 0, shared = true\n    where", "update requests set twin_of = null, shared = true\n    where"),
    Mutant("the end of a job is told to nobody", PROGRESS, "on e.tenant = job.tenant and 'batch.' || job.status = any(e.events)", "on false"),
)  # fmt: skip


def main() -> int:
    """Prints what became of each mutant; returns 1 if one is no mutant any more, because the product has changed."""
    asked = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    asked.add_argument("--minutes", type=float, default=2.0, help="wall time for each mutant")
    asked.add_argument("--only", default="", help="parts of names, with semicolons between them")
    given = asked.parse_args()
    chosen = [one for one in MUTANTS if any(part in one.name for part in given.only.split(";"))]
    outdated = [one.name for one in chosen if one.old not in (ROOT / one.file).read_text()]
    if outdated:
        print("these change nothing:", *outdated, sep="\n  ")
        return 1
    with TemporaryDirectory(prefix="magnus-mutants-") as directory:
        product = Path(directory) / "product"  # stays as it is while somebody works on the repository
        shutil.copytree(ROOT, product, ignore=shutil.ignore_patterns(".*", "docs", "*.safetensors"))
        killed = sum(is_killed(mutant, product, given.minutes) for mutant in chosen)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0


def is_killed(mutant: Mutant, product: Path, minutes: float) -> bool:
    """Runs seeds on the product with this mutant until one fails or the time is over; prints what came of it."""
    began, path = time.monotonic(), product / mutant.file
    before = path.read_text()
    path.write_text(before.replace(mutant.old, mutant.new, 1))
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "1000000", "--minutes", f"{minutes}"]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [*command, "--no-shrinking"], cwd=product, env=environment, capture_output=True, text=True, check=False
    )
    path.write_text(before)
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    told = " ".join(line.strip()[:150] for line in lines[-2:])
    verdict = "killed" if ended.returncode else "LIVES "
    print(f"{verdict} {time.monotonic() - began:5.0f} s  {mutant.name}: {told}", flush=True)
    return ended.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
