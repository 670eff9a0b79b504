"""/v1/models: the one model that this service answers with."""

from typing import Literal

from apiflask import APIBlueprint

from webapp.api_objects import ApiObject
from webapp.app_context import current_context

api = APIBlueprint("models", __name__, url_prefix="/v1/models", tag="Models")


class Bounds(ApiObject):
    """Lengths that the service accepts, in tokens."""

    max_prompt_tokens: int
    max_output_tokens: int


class Model(ApiObject):
    """OpenAI's Model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "magnus"
    magnus: Bounds


class ModelList(ApiObject):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[Model]


@api.get("")
@api.output(ModelList)
@api.doc(summary="List models", security="ApiKey", responses=[401, 403, 429, 503])
def list_() -> ModelList:
    """Lists the one model that this service serves."""
    return ModelList(data=[served_model()])


@api.get("/<path:name>")
@api.output(Model)
@api.doc(summary="Retrieve a model", security="ApiKey", responses=[401, 403, 404, 429, 503])
def retrieve(name: str) -> Model:
    """Returns the served model if it has this name."""
    current_context().prompt_limits.check_model(name)
    return served_model()


def served_model() -> Model:
    """Returns the served model as OpenAI describes a model."""
    limits = current_context().prompt_limits
    bounds = Bounds(max_prompt_tokens=limits.max_prompt_tokens, max_output_tokens=limits.max_output_tokens)
    return Model(id=limits.model_name, magnus=bounds)
