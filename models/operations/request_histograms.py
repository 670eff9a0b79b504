"""Histograms over all answered requests, for Prometheus: times of their stages, and how far off predictions were.

Each request is counted once, in the transaction that moves a mark past the instant at which it ended. Labels are from
sets that clients cannot make larger: models and adapters that a worker serves, weights of tenants, tiers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sqlalchemy.orm import Session

from models.connections.sql import text
from models.tenants.usage import TIER

LABELS = ("model", "tenant_class", "tier")
OTHER = "other"  # the label of models that no worker serves, and of weights without a label of their own
# The class of a tenant is its weight, because tenants of the same weight are served alike. The weight 1 and this many
# of the largest weights have labels of their own. Not tuned.
MOST_CLASSES = 8
# A request is counted this many seconds after its end, because its row is written somewhat after the end. A request
# whose row is written later than that is not counted. Not tuned.
GRACE_S = 5
# One statement counts at most this many seconds of requests: a missed hour may have millions of requests.
MOST_S = 60


@dataclass(frozen=True, slots=True)
class HistogramKind:
    """The definition of a histogram: an expression over the request `r`, and the upper edges of its buckets."""

    help: str
    value: str
    edges: tuple[float, ...]


# These are the edges of vLLM's histograms of the same names, so that vLLM's dashboards and alerts work with our prefix.
STAGE_EDGES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
GAP_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
RATIO_EDGES = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)  # around 1, the ratio of an exact prediction
HISTOGRAMS: Mapping[str, HistogramKind] = {
    "time_to_first_token_seconds": HistogramKind(
        "From a request's arrival to the first token of its answer",
        "extract(epoch from r.first_token_at - r.arrived_at)",
        FIRST_TOKEN_EDGES,
    ),
    "request_queue_time_seconds": HistogramKind(
        "From a request's arrival to the begin of its first batch",
        "extract(epoch from r.started_at - r.arrived_at)",
        STAGE_EDGES,
    ),
    "e2e_request_latency_seconds": HistogramKind(
        "From a request's arrival to its answer", "extract(epoch from r.finished_at - r.arrived_at)", STAGE_EDGES
    ),
    "request_time_per_output_token_seconds": HistogramKind(
        "Mean gap between two tokens of an answer",
        "extract(epoch from r.finished_at - r.first_token_at) / nullif(r.output_tokens - 1, 0)",
        GAP_EDGES,
    ),
    "prediction_error_ratio": HistogramKind(
        "Tokens of an answer over the predicted ones",
        "case when r.status = 'completed' then r.output_tokens::float8 / nullif(r.predicted_tokens, 0) end",
        RATIO_EDGES,
    ),
}


@dataclass(frozen=True, slots=True)
class RequestSeries:
    """One histogram for one set of labels; the last of `counts` is for values above all edges, `sum` adds up values."""

    name: str
    labels: Sequence[str]  # in the order of LABELS
    counts: Sequence[int]
    sum: float


OBSERVED = ", ".join(f"('{name}', ({kind.value})::float8)" for name, kind in HISTOGRAMS.items())
EDGES = ", ".join(f"('{name}', array{list(kind.edges)}::float8[])" for name, kind in HISTOGRAMS.items())
COUNT = text(f"""
    with part as (
        select (value->>'until')::timestamptz as since,
            least((value->>'until')::timestamptz + make_interval(secs => :most_s),
                statement_timestamp() - make_interval(secs => :grace_s)) as until
        from service_state where name = 'histograms' for update
    ), served as (
        select model from workers union select jsonb_array_elements_text(facts->'adapters') from workers
    ), classes as (
        select weight from (values (1.0::float8)) as usual (weight)
        union (select distinct weight from tenants order by weight desc limit :most_classes)
    ), answered as (
        select r.*, coalesce(t.weight, 1) as weight from part cross join lateral (
            select * from requests where status in ('completed', 'incomplete')
                and finished_at >= part.since and finished_at < part.until
        ) r left join tenants t on t.name = r.tenant
    ), observed as (
        select o.name, coalesce(s.model, '{OTHER}') as model, coalesce(c.weight::text, '{OTHER}') as tenant_class,
            {TIER} as tier, greatest(0, o.value) as value, e.edges
        from answered r cross join lateral (values {OBSERVED}) as o (name, value)
            join (values {EDGES}) as e (name, edges) on e.name = o.name
            left join served s on s.model = r.model left join classes c on c.weight = r.weight
        where o.value is not null
    ), added as (
        insert into histogram_buckets as h (name, model, tenant_class, tier, bucket, requests, total)
        -- an edge belongs to the bucket that ends there
        select name, model, tenant_class, tier, width_bucket(value * (1 - 1e-12), edges), count(*), sum(value)
        from observed group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
        on conflict (name, model, tenant_class, tier, bucket) do update
            set requests = h.requests + excluded.requests, total = h.total + excluded.total
    ), moved as (
        update service_state set value = jsonb_build_object('until', part.until), updated_at = clock_timestamp()
        from part where name = 'histograms' and part.until > part.since
    )
    select extract(epoch from until - since)::float8 from part
""")  # noqa: S608  # constants


def count_ended(session: Session) -> bool:
    """Counts requests that ended, up to MOST_S at once; returns whether more are left. The first call sets the mark."""
    counted_s = session.execute(
        COUNT, {"grace_s": GRACE_S, "most_s": MOST_S, "most_classes": MOST_CLASSES}
    ).scalar_one_or_none()
    if counted_s is None:
        session.execute(
            text("""
                insert into service_state (name, value)
                values ('histograms', jsonb_build_object('until', statement_timestamp())) on conflict do nothing
            """)
        )
    session.commit()
    return counted_s is not None and counted_s >= MOST_S


def read(session: Session) -> list[RequestSeries]:
    """Returns all histograms, one for each set of labels."""
    rows = session.execute(
        text("""
            select name, model, tenant_class, tier, bucket, requests, total from histogram_buckets
            order by name, model, tenant_class, tier, bucket
        """)
    )
    found = []
    for (name, *labels), buckets in groupby(rows, attrgetter("name", *LABELS)):
        if name not in HISTOGRAMS:  # another release wrote this histogram
            continue
        counts, total = [0] * (len(HISTOGRAMS[name].edges) + 1), 0.0
        for row in buckets:
            counts[row.bucket] = row.requests
            total += row.total
        found.append(RequestSeries(name, labels, counts, total))
    return found
