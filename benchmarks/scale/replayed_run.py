"""A run of the service on paced workers, played again by the simulator: same requests, instants, predictions, lengths.

What differs between the two is then what the simulator does not know: messages, transactions, processes that wait for a
CPU.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, text

from scheduling.policies.policy_factory import PolicySettings, make_policy
from scheduling.request import Request
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.published_costs import Machine
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

TICK_S = 0.06  # a planner's step while every worker can be joined (`tasks/planning/plan_task.py:JOINING_INTERVAL_S`)

SERVED = text("""
    select id, application, tenant, prompt_tokens, limit_tokens, predicted_tokens, predicted_upper_tokens,
        output_tokens, extract(epoch from arrived_at)::float8 as arrived_at,
        extract(epoch from finished_at)::float8 as finished_at
    from requests where status = 'completed' and arrived_at >= to_timestamp(:since) order by arrived_at, id
""")


def compared(connection: Connection, policy: str, machine: Machine, workers: int, since: float) -> dict[str, Any]:
    """Throughput and response times of the requests served since that instant, and of their simulation; seconds."""
    rows = connection.execute(SERVED, {"since": since}).all()
    first = rows[0].arrived_at
    arrivals = [
        Arrival(
            Request(
                id=row.id,
                arrived_at=row.arrived_at - first,
                length=row.prompt_tokens,
                limit=row.limit_tokens,
                predicted=row.predicted_tokens,
                predicted_upper=row.predicted_upper_tokens,
                application=row.application,
                tenant=row.tenant,
            ),
            row.output_tokens,
        )
        for row in rows
    ]
    settings = PolicySettings(max_prompt_tokens=1024, max_output_tokens=1024, wma_threshold=None, slice_tokens=None)
    policy_object = make_policy(policy, settings)
    fleet = [Instance(f"w{number}", machine.memory) for number in range(workers)]
    tick_s = TICK_S if policy_object.mode == "continuous" else 0.0
    trace = simulate(policy_object, arrivals, fleet, EngineCosts(machine.curves), seed=0, tick_s=tick_s)
    served = np.array([row.finished_at - row.arrived_at for row in rows])
    seconds = max(row.finished_at for row in rows) - first
    service = figures(len(rows) / seconds, served)
    simulated = figures(trace.requests_per_s, np.array([answer.response_s for answer in trace.answers.values()]))
    off = {name: round(service[name] / simulated[name] - 1, 4) for name in service}
    return {"service": service, "simulator": simulated, "service_over_simulator": off}


def figures(requests_per_s: float, response_s: npt.NDArray[np.float64]) -> dict[str, float]:
    """Requests a second, mean and percentiles."""
    p50, p99 = np.percentile(response_s, (50, 99)).tolist()
    return {
        "requests_per_s": round(requests_per_s, 4),
        "mean": round(float(response_s.mean()), 4),
        "p50": round(p50, 4),
        "p99": round(p99, 4),
    }
