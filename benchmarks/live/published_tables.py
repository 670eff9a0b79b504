"""The tables at the papers' paces and on the real model, one command each, which goes on where it was stopped.

    python -m benchmarks.live.published_tables v100 [--minutes 120]
    python -m benchmarks.live.published_tables smollm2 --data DIR --answers F

`v100` is Magnus's machine, `a100` and `a100-hf` are SCLS's under its two engines, `a6000` is BATON's; their workers
keep the pace without computing. `tasks-forest` and `tasks-usin` are `v100` with the requests of the papers' tasks
instead of toy requests, and need `--data`.

`smollm2` is SmolLM2 on this machine with seven rows of Eq. (1), 1,024 + 256 tokens. In bfloat16 an answer depends on
the rows beside it: of answers that the model had ended by itself, one in seven repeated itself up to a limit of 1,024
tokens in another batch. The lower limit keeps these from deciding everything. The `--answers` are made first by
`python -m benchmarks.generated_answers` (an hour on two cores).

The runs go into docs/results/live/TABLE.json, and `benchmarks.live.compared_runs` makes the table of them. Let nothing
else run on the machine: each record has the machine's load before it.
"""

from pathlib import Path

import click

from benchmarks.live.__main__ import main as live
from cli.hosting.service_access import VARIANTS

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "live"
EVERY = f"vs,vsq,ccb,glp,abp,magnus,{','.join(VARIANTS)},sequence,scls,baton,fusion,oracle"
# Serving times are refitted every two minutes: an estimator that is not in service by then never will be.
ESTIMATOR = "--await-estimator 130"
# Magnus keeps 30 % of the memory beside the weights for fragmentation, and Θ is the other 70 %: 3 / 7 of Θ.
HEADROOM = "--headroom 0.4286"
V100 = f"--paced v100 --workers 3 --requests 450 {HEADROOM} {ESTIMATOR} --policies {EVERY}"
# The rates are below what `vs` serves, about what `magnus` or `scls` serves, and above what any policy serves, by
# simulations with toy requests. One host's control plane can keep at most two A100s or A6000s busy.
A100 = "--workers 2 --repeats 3"
TABLES = {
    "v100": f"{V100} --rates 25,12,4 --repeats 3 --predictor forest",
    "v100-usin": f"{V100} --rates 25 --repeats 3 --predictor usin",
    "tasks-forest": f"{V100} --rates 25 --repeats 3 --predictor forest --workload tasks --model smollm2",
    "tasks-usin": f"{V100} --rates 25 --repeats 3 --predictor usin --workload tasks --model smollm2",
    "a100": f"--paced a100 {A100} --requests 1200 --rates 10,35,60 --policies vs,ccb,scls,baton,fusion",
    "a100-hf": f"--paced a100-hf {A100} --requests 900 --rates 7,20,40 --policies vs,scls,baton,fusion",
    "a6000": f"--paced a6000 {A100} --requests 900 --rates 10,28 --policies vs,ccb,baton,fusion",
    "smollm2": (
        "--model smollm2 --workload tasks --workers 1 --max-output-tokens 256 --kv-budget 197MiB --requests 600 "
        f"--rates 4 --repeats 1 {ESTIMATOR} --policies vs,magnus,scls,baton,fusion"
    ),
}
PATH = click.Path(exists=True, path_type=Path)


@click.command(help=__doc__)
@click.argument("table", type=click.Choice(sorted(TABLES)))
@click.option("--data", type=PATH, help="Directory of requests, for the papers' tasks.")
@click.option("--answers", type=PATH, help="SmolLM2's own answers to them.")
@click.option("--minutes", default=90.0, show_default=True, help="No run is started later.")
@click.option("--requests", type=click.IntRange(1), help="Fewer, to try the command; into TABLE-REQUESTS.json.")
def main(table: str, data: Path | None, answers: Path | None, minutes: float, requests: int | None) -> None:
    """Measure the runs that the table still lacks."""
    arguments = TABLES[table].split()
    name = table
    if requests is not None:
        arguments += ["--requests", str(requests)]
        name = f"{table}-{requests}"
    for option, value in (("--data", data), ("--answers", answers)):
        arguments += [option, str(value)] if value else []
    live.main(
        [*arguments, "--resume", "--minutes", str(minutes), "--json", str(RESULTS / f"{name}.json")],
        standalone_mode=False,
    )


if __name__ == "__main__":
    main()
