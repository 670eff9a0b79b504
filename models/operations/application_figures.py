"""Answers by application: response times, and predicted lengths beside the true ones."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

import numpy as np
from sqlalchemy.orm import Session

from models.connections.sql import text
from scheduling.rank_correlation import kendall_tau

# number of answers that the query reads: enough for a scatter plot and for figures of each application; not tuned
MOST_COMPARED = 2000


@dataclass(frozen=True, slots=True)
class PredictedAnswer:
    """True and predicted tokens of a complete answer, its ETA's error, and whether it kept the ETA's interval."""

    application: str
    tokens: int
    predicted_tokens: int
    upper_tokens: int
    version: str | None
    eta_error_s: float | None
    eta_kept: bool | None


def newest_answers(session: Session) -> list[PredictedAnswer]:
    """Returns the complete and predicted answers among the MOST_COMPARED that ended last."""
    rows = session.execute(
        text("""
            select application, output_tokens as tokens, predicted_tokens,
                coalesce(predicted_upper_tokens, predicted_tokens) as upper_tokens, predictor_version as version,
                abs(response_s - (eta->>'eta_s')::float8) as eta_error_s,
                response_s between (eta->>'low_s')::float8 and (eta->>'high_s')::float8 as eta_kept
            from (
                select *, extract(epoch from finished_at - arrived_at)::float8 as response_s
                from requests where status in ('completed', 'incomplete') order by finished_at desc limit :most
            ) as newest
            where status = 'completed' and predicted_tokens is not null and output_tokens is not null
                and kind = 'answer'
        """),
        {"most": MOST_COMPARED},
    )
    return [PredictedAnswer(**row._mapping) for row in rows]


# The figures by application are computed from at most this many newest answers of the last hour. That bounds the time
# of the query under heavy traffic; not tuned.
MOST_ANSWERS = 5000
MOST_APPLICATIONS = 50  # rows of the page's table; a longer table is not readable


@dataclass(frozen=True, slots=True)
class Application:
    """An application's answers among the newest MOST_ANSWERS of the last hour; times in seconds, lengths in tokens."""

    name: str
    answers: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    mean_predicted: float | None
    mean_actual: float
    rmse: float | None


def applications(session: Session) -> list[Application]:
    """Returns response times and predictions by application, the one with the most answers first."""
    rows = session.execute(
        text("""
            with answers as (
                select application, output_tokens,
                    case when kind = 'answer' then predicted_tokens end as predicted_tokens,
                    extract(epoch from finished_at - arrived_at)::float8 as response_s
                from requests
                where finished_at > statement_timestamp() - interval '1 h' and status in ('completed', 'incomplete')
                order by finished_at desc limit :most
            ), grouped as (
                select application, count(*) as answers,
                    percentile_cont(array[0.5, 0.95, 0.99, 1]) within group (order by response_s) as response_s,
                    avg(predicted_tokens)::float8 as mean_predicted, avg(output_tokens)::float8 as mean_actual,
                    sqrt(avg((predicted_tokens - output_tokens)::float8 ^ 2)) as rmse
                from answers group by application
            )
            select application, answers, response_s[1], response_s[2], response_s[3], response_s[4],
                mean_predicted, mean_actual, rmse
            from grouped order by answers desc, application limit :most_applications
        """),
        {"most": MOST_ANSWERS, "most_applications": MOST_APPLICATIONS},
    )
    return [Application(*row) for row in rows]


FEWEST_FOR_TAU = 10  # with fewer answers, tau is mostly chance


@dataclass(frozen=True, slots=True)
class PredictionScore:
    """One application's predictions: errors in tokens, rank correlation, coverage of the upper quantile, ETAs."""

    application: str
    answers: int
    mean_predicted: float
    mean_tokens: float
    rmse: float
    tau: float | None
    coverage: float
    eta_error_s: float | None  # the median error of the ETAs given at submission
    eta_kept: float | None  # the share of answers that came within the interval of their ETA


def scores_by_application(answers: Iterable[PredictedAnswer]) -> list[PredictionScore]:
    """Returns the scores by application, the one with the most answers first."""
    groups = defaultdict(list)
    for one in answers:
        groups[one.application].append(one)
    return sorted((_score(name, group) for name, group in groups.items()), key=lambda s: (-s.answers, s.application))


def _score(application: str, answers: Sequence[PredictedAnswer]) -> PredictionScore:
    predicted = np.array([one.predicted_tokens for one in answers], np.float64)
    tokens = np.array([one.tokens for one in answers], np.float64)
    promised = [one.eta_error_s for one in answers if one.eta_error_s is not None]
    kept = [one.eta_kept for one in answers if one.eta_kept is not None]
    return PredictionScore(
        application,
        len(answers),
        float(predicted.mean()),
        float(tokens.mean()),
        sqrt(float(((predicted - tokens) ** 2).mean())),
        kendall_tau(predicted, tokens) if len(answers) >= FEWEST_FOR_TAU else None,
        sum(one.tokens <= one.upper_tokens for one in answers) / len(answers),
        median(promised) if promised else None,
        sum(kept) / len(kept) if kept else None,
    )
