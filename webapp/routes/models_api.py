"""/v1/models: the models, adapters (with their `parent`, as vLLM) and models for vectors of this service."""

from typing import Literal

from apiflask import APIBlueprint
from pydantic import Field

from protocol.api_objects import ApiObject, ListPage
from scheduling.kv_memory import MOST_TOKENS
from webapp.context.app_context import current_context

api = APIBlueprint("models", __name__, url_prefix="/v1/models", tag="Models")


class Bounds(ApiObject):
    """A model's task, and the lengths that the service accepts, in tokens."""

    task: Literal["generate", "embed", "score"] = "generate"
    dimensions: int | None = Field(default=None, description="Values of a vector, of a model for embeddings")
    max_prompt_tokens: int = Field(description="By the service's setting, the model's context and the workers' memory")
    max_output_tokens: int
    context_tokens: int | None = Field(description="The model's context: a prompt with its answer; null if unknown")
    largest_worker_tokens: int | None = Field(
        description="What the largest worker's memory holds of a prompt with its answer; null if no worker is known, "
        "or if all layers attend to windows, so that memory holds a row of any length"
    )


class Model(ApiObject):
    """OpenAI's Model, with the fields of Anthropic's ModelInfo."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str
    created: int = 0
    created_at: str = "1970-01-01T00:00:00Z"
    lifecycle: Literal["active"] = "active"
    owned_by: str = "magnus"
    parent: str | None = Field(default=None, description="The model beside which this adapter answers")
    magnus: Bounds


class ModelList(ListPage):
    """The list of models, as OpenAI's and Anthropic's clients read it."""

    data: list[Model]


@api.get("")
@api.output(ModelList)
@api.doc(summary="List models", security="ApiKey", responses=[401, 403, 429, 503])
def list_() -> ModelList:
    """Lists the models that answer (the first under each of its names), adapters, and models for vectors and scores."""
    limits = current_context().prompt_limits
    names = (limits.model_name, *limits.further_names, *limits.others, *limits.adapters, *limits.texts.models)
    return ModelList.with_entries([served_model(name) for name in names], has_more=False)


@api.get("/<path:name>")
@api.output(Model)
@api.doc(summary="Retrieve a model", security="ApiKey", responses=[401, 403, 404, 429, 503])
def retrieve(name: str) -> Model:
    """Returns the served model of this name."""
    limits = current_context().prompt_limits
    if name not in limits.texts.models:
        limits.of(name)
    return served_model(name)


def served_model(name: str) -> Model:
    """Returns the served model under this name as clients know a model."""
    limits, snapshot = current_context().prompt_limits, current_context().queue_snapshot.get()
    text_model = limits.texts.models.get(name)
    if text_model is not None:
        bounds = Bounds(
            task="score" if text_model.scores_pairs else "embed",
            dimensions=text_model.dimensions,
            max_prompt_tokens=text_model.max_tokens,
            max_output_tokens=0,
            context_tokens=text_model.max_tokens,
            largest_worker_tokens=snapshot.of(name).largest_tokens if snapshot else None,
        )
        return Model(id=name, display_name=name, magnus=bounds)
    limits = limits.of(name)
    largest_tokens = snapshot.of(limits.model_name).largest_tokens if snapshot else None
    longest = limits.max_prompt_tokens if largest_tokens is None else min(limits.max_prompt_tokens, largest_tokens - 1)
    if largest_tokens is not None and largest_tokens >= MOST_TOKENS:
        largest_tokens = None
    bounds = Bounds(
        max_prompt_tokens=longest,
        max_output_tokens=limits.max_output_tokens,
        context_tokens=limits.prompt_format.context_tokens,
        largest_worker_tokens=largest_tokens,
    )
    adapter = name != limits.model_name and name not in limits.further_names
    return Model(id=name, display_name=name, parent=limits.model_name if adapter else None, magnus=bounds)
