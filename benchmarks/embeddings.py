"""Vectors of many texts as a batch against sentence-transformers alone: `python -m benchmarks.embeddings [--json F]`.

The library encodes all texts in a process of its own with several batch sizes. Then a service with one worker serves
them as one batch: with one text a line, and with a hundred. While the first one runs, interactive calls come one after
another from a few clients. Seconds of a batch count from its creation to its end, as its client sees it.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
from openai import OpenAI

from benchmarks.harness import Json, Results, json_option, print_table, spread, until
from benchmarks.service_start import running, up_program
from cli.hosting.service_files import api_address
from settings import read_settings

BATCH_SIZES = (8, 32, 64, 128)
TEXTS_A_LINE = (1, 100)
WORDS = [
    "the",
    "river",
    "froze",
    "while",
    "a",
    "committee",
    "argued",
    "about",
    "bridges",
    "and",
    "prices",
    "of",
    "houses",
]
LIBRARY = """
import json, sys, time
from sentence_transformers import SentenceTransformer
texts, model = json.load(sys.stdin), SentenceTransformer(sys.argv[1], device="cpu")
model.encode(texts[:64])
seconds = {}
for size in map(int, sys.argv[2:]):
    began = time.perf_counter()
    model.encode(texts, batch_size=size, show_progress_bar=False)
    seconds[size] = time.perf_counter() - began
print(json.dumps(seconds))
"""


@click.command(help=__doc__)
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path), help="Directory of the model.")
@click.option("--texts", default=10_000, show_default=True)
@click.option("--at-once", multiple=True, default=BATCH_SIZES, show_default=True, help="Batch sizes of the library.")
@click.option("--clients", default=4, show_default=True, help="That send interactive calls.")
@json_option
def main(model: Path, texts: int, at_once: tuple[int, ...], clients: int, results: Results) -> None:
    """Measure, print and write."""
    rng = random.Random(1)
    made = [" ".join(rng.choices(WORDS, k=min(200, round(rng.lognormvariate(3.2, 0.7)) + 1))) for _ in range(texts)]
    command = [sys.executable, "-c", LIBRARY, str(model), *map(str, at_once)]
    done = subprocess.run(command, input=json.dumps(made), capture_output=True, text=True, check=True)
    rows: list[Json] = [{"run": f"library, {n} at once", "s": s} for n, s in json.loads(done.stdout).items()]
    best_s = min(row["s"] for row in rows)
    with tempfile.TemporaryDirectory() as directory:
        state_dir = Path(directory) / "state"
        environment = {"MAGNUS_EMBED": str(model.resolve())}
        program = up_program(state_dir, "--workers", "0", environment=environment)
        with running(program, Path(directory) / "log"):
            url, key = api_address(read_settings(state_dir=state_dir))
            client = OpenAI(base_url=f"{url}/v1", api_key=key)
            for size in TEXTS_A_LINE:
                began, job = time.perf_counter(), _start_batch(client, model.name, made, size)
                until(partial(_completed, client, job), 3600.0)
                rows.append({"run": f"service, {size} a line", "s": time.perf_counter() - began})
            # after the batches, which have the worker for themselves once no interactive call came for a minute
            quiet = _interactive(client, model.name, clients, seconds=5.0)
            _start_batch(client, model.name, made, 1)
            time.sleep(5.0)
            beside = _interactive(client, model.name, clients, seconds=20.0)
    rows = [row | {"texts_per_s": texts / row["s"], "ratio": row["s"] / best_s} for row in rows]
    print_table(rows, {"run": "run", "seconds": "s:.1f", "texts / s": "texts_per_s:.0f", "x library": "ratio:.2f"})
    calls = [{"calls": "alone"} | quiet, {"calls": "beside a batch"} | beside]
    print_table(calls, {"calls": "calls", "n": "calls_n", "P50 ms": "p50:.0f", "P95": "p95:.0f", "max": "max:.0f"})
    results.write({"texts": texts, "runs": rows, "interactive": calls})


def _start_batch(client: OpenAI, model: str, texts: list[str], texts_a_line: int) -> str:
    lines = (
        {
            "custom_id": str(begin),
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": model, "input": texts[begin : begin + texts_a_line], "encoding_format": "base64"},
        }
        for begin in range(0, len(texts), texts_a_line)
    )
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h").id


def _completed(client: OpenAI, batch_id: str) -> bool:
    return client.batches.retrieve(batch_id).status == "completed"


def _interactive(client: OpenAI, model: str, clients: int, seconds: float) -> Json:
    """Returns the latencies in ms of calls with one text that each client sends one after another."""
    until_at = time.perf_counter() + seconds

    def call_again(_: int) -> list[float]:
        latencies = []
        while (began := time.perf_counter()) < until_at:
            client.embeddings.create(model=model, input="which bridges froze")
            latencies.append(1e3 * (time.perf_counter() - began))
        return latencies

    with ThreadPoolExecutor(clients) as pool:
        latencies = [one for some in pool.map(call_again, range(clients)) for one in some]
    return {"calls_n": len(latencies), **spread(latencies)}


if __name__ == "__main__":
    main()
