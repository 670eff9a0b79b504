"""The newest answers with what was predicted of them, for the page of predictions."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.sql import text

MOST_ANSWERS = 2000  # enough for a picture and for figures of each application; it bounds the query. Not tuned.


@dataclass(frozen=True, slots=True)
class PredictedAnswer:
    """A complete answer: true and predicted length in tokens, and how far its ETA was off, in seconds, if it had one.

    `eta_kept`: it ended within the interval that it was promised with.
    """

    application: str
    tokens: int
    predicted_tokens: int
    upper_tokens: int
    version: str | None
    eta_error_s: float | None
    eta_kept: bool | None


def newest_answers(session: Session) -> list[PredictedAnswer]:
    """The complete and predicted ones among the MOST_ANSWERS that ended last."""
    rows = session.execute(
        text("""
            select application, output_tokens as tokens, predicted_tokens,
                coalesce(predicted_upper_tokens, predicted_tokens) as upper_tokens, predictor_version as version,
                abs(extract(epoch from finished_at - eta_at))::float8 as eta_error_s,
                finished_at between eta_low_at and eta_high_at as eta_kept
            from (
                select * from requests where status in ('completed', 'incomplete') order by finished_at desc limit :most
            ) as newest
            where status = 'completed' and predicted_tokens is not null and output_tokens is not null
        """),
        {"most": MOST_ANSWERS},
    )
    return [PredictedAnswer(**row._mapping) for row in rows]
