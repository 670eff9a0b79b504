"""BATON, Fig. 5 to 7: what is answered, generated and cached over time, read off a simulation's trace."""

from typing import Any

import numpy as np

from scheduling.simulation.simulator import Arrival
from scheduling.simulation.trace import Trace

POINTS = 61  # instants from the first arrival to the last answer: more draw the same curves


def curves_over_time(trace: Trace, arrivals: list[Arrival]) -> dict[str, Any]:
    """Columns of the row: completed queries, generated tokens and cached tokens at evenly spaced instants.

    A row's tokens are spread evenly over its time, since a trace has no instant for each. In a run-to-completion batch
    a row's cache grows and stays until the batch ends, in a continuous one until the row ends.
    """
    at = np.linspace(trace.first_arrival_at, trace.first_arrival_at + trace.makespan_s, POINTS)
    prompts = {arrival.request.id: arrival.request.length for arrival in arrivals}
    held = {
        request_id: (batch.ended_at, batch.iterations)
        for batch in trace.batches
        if not batch.joined
        for request_id in batch.ids
    }
    completed, generated, cached = np.zeros(POINTS), np.zeros(POINTS), np.zeros(POINTS)
    for answer in trace.answers.values():
        done = np.clip((at - answer.started_at) / max(1e-9, answer.finished_at - answer.started_at), 0, 1)
        completed += at >= answer.finished_at
        generated += answer.generated * done
        until, iterations = held.get(answer.id, (answer.finished_at, answer.generated))
        grown = iterations * np.clip((at - answer.started_at) / max(1e-9, until - answer.started_at), 0, 1)
        cached += (prompts[answer.id] + grown) * ((at >= answer.started_at) & (at < until))
    return {
        "instants_s": at.round(2).tolist(),
        "completed": completed.astype(int).tolist(),
        "generated_tokens": generated.round().astype(int).tolist(),
        "cached_tokens": cached.round().astype(int).tolist(),
    }
