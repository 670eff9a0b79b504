"""Tenants in overload: how far each one's share of the tokens is from the share of its weight.

Simulated under every policy, and live under the default one. All requests of all tenants arrive at the beginning, and
counting ends before a tenant has no waiting requests left.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import text

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, measured_service
from benchmarks.chaos.recording_client import RecordingClient, bodies
from benchmarks.harness import until
from benchmarks.mixed.simulated_mix import LIMIT, WORKERS, lengths_of
from benchmarks.published_costs import LLAMA2_13B_A100_DS
from models.operations import operator_overview
from models.session import make_sessions
from models.tenants import api_keys, tenant_limits
from scheduling.policies.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

MOST_OFF = 10  # the bound on `most_off`, in percent
WEIGHTS = {"small": 1.0, "middle": 2.0, "large": 3.0}
# Requests of each tenant in the simulator. Requests in flight do not count, and each tenant's shortest go first: with
# 900 requests the shares under `fusion` are 11.5 % off, with 3,600 they are 0.8 % off.
BACKLOG = 1800
LIVE_BACKLOG = 800
SERVED_WITHIN_S = 240.0  # any value well above the backlog's time works
# The shares of the fastest tenant's requests that have ended when counting begins and when it ends. Less than a tenth
# of a backlog runs at once, so that workers are full all the time in between.
COUNTED = (0.1, 0.85)
SERVED = text("""
    select tenant, extract(epoch from finished_at)::float8 as finished_at, input_tokens + output_tokens as tokens
    from requests where tenant = any(:tenants) and finished_at is not null
""")

Served = tuple[str, float, float]  # tenant, when it was finished, its tokens


def shares(served: Iterable[Served]) -> dict[str, float]:
    """Compute each tenant's share of the tokens, over the time in which every tenant has waiting requests."""
    served = sorted(served, key=lambda one: one[1])
    ends: dict[str, list[float]] = defaultdict(list)
    for tenant, finished_at, _ in served:
        ends[tenant].append(finished_at)
    fastest = min(ends.values(), key=lambda of: of[round(COUNTED[1] * (len(of) - 1))])
    since, until = (fastest[round(share * (len(fastest) - 1))] for share in COUNTED)
    tokens = dict.fromkeys(ends, 0.0)
    for tenant, finished_at, count in served:
        tokens[tenant] += count if since < finished_at <= until else 0.0
    total = max(sum(tokens.values()), 1.0)
    return {tenant: count / total for tenant, count in tokens.items()}


def most_off(found: Mapping[str, float]) -> float:
    """The largest difference between a tenant's share and the share of its weight, in percent of the weight's share."""
    total = sum(WEIGHTS.values())
    return max(100 * abs(found.get(tenant, 0.0) / (weight / total) - 1) for tenant, weight in WEIGHTS.items())


def simulated(policy_name: str, backlog: int) -> dict[str, float]:
    """Simulate a policy on the fleet of `benchmarks.mixed`; returns the shares."""
    arrivals = []
    for seed, tenant in enumerate(WEIGHTS):
        made = lengths_of(backlog, f"{tenant}-", 0, [n * 1e-6 for n in range(backlog)], seed)
        arrivals += [Arrival(replace(one.request, tenant=tenant), one.generation_length) for one in made]
    policy = make_policy(policy_name, PolicySettings(max_output_tokens=LIMIT))
    policy.set_weights(WEIGHTS)
    fleet = [Instance(f"w{n}", LLAMA2_13B_A100_DS.memory) for n in range(WORKERS)]
    trace = simulate(policy, arrivals, fleet, EngineCosts(LLAMA2_13B_A100_DS.curves), seed=1)
    requests = {one.request.id: one.request for one in arrivals}
    answers = ((requests[one.id], one) for one in trace.answers.values())
    return shares((of.tenant, one.finished_at, float(of.length + one.generated)) for of, one in answers)


def live(service: MeasuredService, backlog: int) -> dict[str, float]:
    """Measure the shares on a whole service, whose planning is paused until every tenant's backlog has arrived."""
    with make_sessions(service.database).begin() as session:
        keys = {tenant: api_keys.create(session, name="benchmark", tenant=tenant)[1] for tenant in WEIGHTS}
        for tenant, weight in WEIGHTS.items():
            tenant_limits.change_tenant(session, tenant, {"weight": weight})
        operator_overview.set_paused(session, True)
    for seed, key in enumerate(keys.values()):
        with RecordingClient(service.url, key) as client:
            client.submit_all(bodies(backlog, seed))
    with make_sessions(service.database).begin() as session:
        operator_overview.set_paused(session, False)
    until(lambda: not _waiting(service), SERVED_WITHIN_S)
    with service.database.connect() as connection:
        rows = connection.execute(SERVED, {"tenants": list(WEIGHTS)}).all()
    return shares((row.tenant, row.finished_at, float(row.tokens)) for row in rows)


def _waiting(service: MeasuredService) -> int:
    with service.database.connect() as connection:
        return int(connection.execute(text("select count(*) from requests where finished_at is null")).scalar_one())


def measure(short: bool) -> MeasuredFigure:
    """Measure every policy in the simulator, and the default one live."""
    measured = MeasuredFigure()
    for name in POLICIES:
        _judge(measured, f"{name}, simulated", simulated(name, BACKLOG // 10 if short else BACKLOG))
    with measured_service("--workers", "1") as service:
        _judge(measured, "default policy, live", live(service, 60 if short else LIVE_BACKLOG))
    return measured


def _judge(measured: MeasuredFigure, name: str, found: dict[str, float]) -> None:
    off = most_off(found)
    measured.figures[name] = {"shares": found, "most_off_percent": off}
    total = sum(WEIGHTS.values())
    more = ", ".join(f"{tenant} {found[tenant]:.1%} of {weight / total:.1%}" for tenant, weight in WEIGHTS.items())
    measured.below(f"{name}: share furthest off its weight's", MOST_OFF, off, "%", f" ({more})")
