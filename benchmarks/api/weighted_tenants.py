"""Tenants in overload: how far each one's share of the tokens is from the share of its weight.

Shares are simulated under every policy and measured live under the default one. All requests arrive at the beginning,
and counting ends before the first tenant has no waiting requests left.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from sqlalchemy import text

from benchmarks.api.measured_service import MeasuredFigure, MeasuredService, measured_service
from benchmarks.experiment import Experiment
from benchmarks.harness import Json, until
from benchmarks.mixed.simulated_mix import LIMIT, WORKERS, lengths_of
from benchmarks.published_costs import LLAMA2_13B_A100_DS
from benchmarks.service_start import submitted
from cli.api_client import Client
from cli.demo.demo_workload import poisson_arrivals
from models.connections.session import make_sessions
from models.operations import operator_overview
from models.tenants import api_keys, tenant_limits
from scheduling.sharing.policy_factory import POLICIES, PolicySettings, make_policy
from scheduling.simulation.engine_costs import EngineCosts
from scheduling.simulation.simulated_worker import Instance
from scheduling.simulation.simulator import Arrival, simulate

MOST_OFF = 10  # the bound on `most_off`, in percent
WEIGHTS = {"small": 1.0, "middle": 2.0, "large": 3.0}
# Requests of each tenant in the simulator. Only finished requests count, and each tenant's shortest go first, so that
# few requests distort the shares: under `fusion` they are 11.5 % off with 900 requests, and 0.8 % off with 3,600.
BACKLOG, SHORT_BACKLOG = 1800, 180
LIVE_SHARE = 4 / 9  # live, each tenant sends this share of the simulated requests: 800 or 80
AT_ONCE, MEDIAN_WORDS = 1e6, 8.0  # arrivals a second, more than a service can accept, and the words of a median text
SERVED_WITHIN_S = 240.0  # any value well above the seconds that serving the backlog takes works
# Counting begins and ends when these shares of the fastest tenant's requests have ended. Less than a tenth of a backlog
# runs at once, so that the workers are full all the time in between.
COUNTED = (0.1, 0.85)
SERVED = text("""
    select tenant, extract(epoch from finished_at)::float8 as finished_at, input_tokens + output_tokens as tokens
    from requests where tenant = any(:tenants) and finished_at is not null
""")

Served = tuple[str, float, float]  # a request's tenant, the instant of its end, its tokens


def shares(served: Iterable[Served]) -> dict[str, float]:
    """Return each tenant's share of the tokens of requests that finished while every tenant had requests waiting."""
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
    """Return the largest deviation of a tenant's share from the share of its weight, in percent of the latter."""
    total = sum(WEIGHTS.values())
    return max(100 * abs(found.get(tenant, 0.0) / (weight / total) - 1) for tenant, weight in WEIGHTS.items())


def simulated(policy_name: str, backlog: int) -> dict[str, float]:
    """Simulate a policy on the fleet of `benchmarks.mixed`; returns each tenant's share of the tokens."""
    arrivals = []
    for seed, tenant in enumerate(WEIGHTS):
        made = lengths_of(backlog, f"{tenant}-", "default", [n * 1e-6 for n in range(backlog)], seed)
        arrivals += [Arrival(replace(one.request, tenant=tenant), one.generation_length) for one in made]
    policy = make_policy(policy_name, PolicySettings(max_output_tokens=LIMIT))
    policy.set_weights(WEIGHTS)
    fleet = [Instance(f"w{n}", LLAMA2_13B_A100_DS.memory) for n in range(WORKERS)]
    trace = simulate(policy, arrivals, fleet, EngineCosts(LLAMA2_13B_A100_DS.curves), seed=1)
    requests = {one.request.id: one.request for one in arrivals}
    answers = ((requests[one.id], one) for one in trace.answers.values())
    return shares((of.tenant, one.finished_at, float(of.length + one.generated)) for of, one in answers)


def live(backlog: int) -> dict[str, float]:
    """Serve the backlog on a whole service with one worker; returns each tenant's share of the tokens."""
    with measured_service("--workers", "1") as service:
        return _served_shares(service, round(LIVE_SHARE * backlog))


def _served_shares(service: MeasuredService, backlog: int) -> dict[str, float]:
    """Pause planning until every tenant's backlog has arrived, and wait until all of it is served."""
    with make_sessions(service.database).begin() as session:
        keys = {tenant: api_keys.create(session, name="benchmark", tenant=tenant)[1] for tenant in WEIGHTS}
        for tenant, weight in WEIGHTS.items():
            tenant_limits.change_tenant(session, tenant, {"weight": weight})
        operator_overview.set_paused(session, True)
    for seed, key in enumerate(keys.values()):
        with Client(service.url, key) as client:
            submitted(client, poisson_arrivals(backlog, AT_ONCE, seed, MEDIAN_WORDS))
    with make_sessions(service.database).begin() as session:
        operator_overview.set_paused(session, False)
    until(lambda: not _waiting(service), SERVED_WITHIN_S)
    with service.database.connect() as connection:
        rows = connection.execute(SERVED, {"tenants": list(WEIGHTS)}).all()
    return shares((row.tenant, row.finished_at, float(row.tokens)) for row in rows)


def _waiting(service: MeasuredService) -> int:
    with service.database.connect() as connection:
        return int(connection.execute(text("select count(*) from requests where finished_at is null")).scalar_one())


def measure(served: Callable[[int], dict[str, float]], backlog: int) -> Json:
    """Get the tenants' shares from `served`, simulated or live, and compare them with their weights."""
    found, measured, total = served(backlog), MeasuredFigure(), sum(WEIGHTS.values())
    off = most_off(found)
    measured.figures = {"shares": found, "most_off_percent": off}
    more = ", ".join(f"{tenant} {found[tenant]:.1%} of {weight / total:.1%}" for tenant, weight in WEIGHTS.items())
    measured.below("share furthest off its weight's", MOST_OFF, off, "%", f" ({more})")
    return measured.as_run()


TENANTS = Experiment(
    {"long": BACKLOG, "short": SHORT_BACKLOG},
    {f"{name}, simulated": partial(simulated, name) for name in POLICIES} | {"default policy, live": live},
    measure,
)
