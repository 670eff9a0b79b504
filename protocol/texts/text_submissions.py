"""Makes the submissions of calls for vectors and scores; checks their texts. Lines of batches use it, too."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from inference.prompts.model_prompt import ModelPrompt
from models.tables import RequestKind
from protocol.client_errors import InvalidRequest
from protocol.limits.prompt_limits import PromptLimits
from protocol.limits.text_limits import CallTexts, check_values, checked_texts
from protocol.requests.submission import FieldNames, Submission, served_tier
from protocol.texts.text_schemas import CreateEmbeddings, CreateRerank, CreateScore, TextFields
from request_body import Pooling, RequestBody

# the kind of request, where the client does not name it
APPLICATIONS: dict[type[TextFields], str] = {
    CreateEmbeddings: "embeddings",
    CreateRerank: "rerank",
    CreateScore: "score",
}


def embeddings_submission(
    body: CreateEmbeddings, tenant: str, limits: PromptLimits, key: str | None = None
) -> Submission:
    """Returns the submission of a call for vectors; raises InvalidRequest, NotFound."""
    model = limits.texts.find(body.model, scores=False)
    if body.dimensions not in (None, model.dimensions):
        raise InvalidRequest(
            f"The vectors of '{model.name}' have {model.dimensions} values, and this service does not shorten them: "
            "leave dimensions out.",
            param="dimensions",
            code="unsupported_value",
        )
    as_base64 = body.encoding_format == "base64"
    check_values(model, len(body.texts), as_numbers=not as_base64)
    call = CallTexts(body.texts, numbered("input", body.input))
    return _submission(body, tenant, limits, key, call, "vectors", base64=as_base64)


def rerank_submission(body: CreateRerank, tenant: str, limits: PromptLimits, key: str | None = None) -> Submission:
    """Returns the submission of a rerank; raises InvalidRequest, NotFound."""
    call = CallTexts([body.query, *body.texts], ["query", *numbered("documents", body.documents)], queries=1)
    shown = {"top_n": body.top_n, "returns_documents": body.return_documents is not False}
    return _submission(body, tenant, limits, key, call, "scores", **shown)


def score_submission(body: CreateScore, tenant: str, limits: PromptLimits, key: str | None = None) -> Submission:
    """Returns the submission of a call for scores; raises InvalidRequest, NotFound."""
    first, second = body.pairs
    names = [*numbered("text_1", body.text_1), *numbered("text_2", body.text_2)]
    return _submission(body, tenant, limits, key, CallTexts([*first, *second], names, len(first)), "scores")


def numbered(name: str, value: str | Sequence[object]) -> list[str]:
    """Returns the names of a field's texts for errors."""
    return [name] if isinstance(value, str) else [f"{name}[{number}]" for number in range(len(value))]


def _submission(
    body: TextFields,
    tenant: str,
    limits: PromptLimits,
    key: str | None,
    call: CallTexts,
    kind: RequestKind,
    **shown: Any,
) -> Submission:
    model = limits.texts.find(body.model, scores=kind == "scores")
    truncates = body.truncate or body.truncation or (isinstance(body, CreateRerank) and body.max_tokens_per_doc)
    texts, tokens = checked_texts(model, call, truncate=bool(truncates), tenant=tenant)
    pooling = Pooling(tokens=tuple(tokens), queries=call.queries, **shown)
    metadata = {"application": APPLICATIONS[type(body)]} | (body.metadata or {})
    return Submission(
        tenant=tenant,
        idempotency_key=key,
        model=model.name,
        prompt=ModelPrompt("", to_json(texts).decode()),
        body=RequestBody(metadata=metadata, background=False, pooling=pooling),
        sent=body,
        limit_tokens=1,
        kind=kind,
        priority=body.magnus.priority,
        service_tier=served_tier(body.service_tier),
        deadline_s=body.magnus.deadline_s,
        names=FieldNames(call.names[0].partition("[")[0]),
    )
