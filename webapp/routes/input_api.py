"""Two calls under /v1/responses: the input items of a response, and the tokens of the prompt that a body would make."""

from functools import partial
from typing import Annotated, Any, Literal

from apiflask import APIBlueprint
from pydantic import Field

from protocol.api_objects import ApiObject, ListPage, PageQuery
from protocol.client_errors import InvalidRequest
from protocol.field_types import Body, Text
from protocol.requests.client_prompt import prompt_of_turns
from protocol.requests.options import TemplateVariables
from protocol.requests.tools import MOST_TOOLS, ResponseTool, ResponseToolChoice, functions_of, stored_choice
from protocol.responses.conversation import fitting, items_of, turns_of
from protocol.responses.response_schemas import Includable, Question, ReasoningOptions, TextOptions
from request_body import RequestBody, UnreadableBody, read_body
from webapp.context.app_context import current_context
from webapp.context.auth import current_tenant
from webapp.requests.stored_conversations import earlier_turns, referenced_items
from webapp.requests.stored_requests import find_request

api = APIBlueprint("conversations", __name__, url_prefix="/v1/responses", tag="Responses")


class ItemsQuery(PageQuery):
    """GET /v1/responses/{id}/input_items."""

    order: Literal["asc", "desc"] = Field(default="desc", description="desc: newest first")
    include: Includable | None = Field(default=None, alias="include[]", description="Accepted, not used")


class ItemList(ListPage):
    """One page of items."""

    data: list[dict[str, Any]]


class CountTokens(Body):
    """POST /v1/responses/input_tokens: what of a response's body makes its prompt."""

    model: Text = Field(description="Name of the served model, see /v1/models")
    input: Question | None = None
    instructions: Text | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: Annotated[Text, Field(max_length=128)] | None = None
    conversation: None = None


class TokenCount(ApiObject):
    """OpenAI's count of a prompt's tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@api.get("/<id>/input_items")
@api.input(ItemsQuery, location="query")
@api.output(ItemList)
@api.doc(summary="List the input of a response", security="ApiKey", responses=[400, 401, 403, 404, 429, 503])
def input_items(id: str, query_data: ItemsQuery) -> ItemList:
    """Lists the items that the response answered, including those of the responses before it."""
    view = find_request(current_context(), current_tenant(), id)
    try:
        body = read_body(view.request.body)
    except UnreadableBody as error:
        raise InvalidRequest(str(error), param="id", code="unreadable_request") from error
    items = list(items_of(view, body)) if view.request.input else []  # texts with `store: false` are deleted
    if query_data.order == "desc":
        items.reverse()
    if query_data.after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == query_data.after]
        if not places:
            raise InvalidRequest(f"No item '{query_data.after[:80]}' to list after.", param="after")
        items = items[places[0] + 1 :]
    page = items[: query_data.limit]
    return ItemList.with_entries(page, has_more=len(items) > len(page))


@api.post("/input_tokens")
@api.input(CountTokens)
@api.output(TokenCount)
@api.doc(summary="Count a prompt's tokens", security="ApiKey", responses=[400, 401, 403, 404, 413, 429, 503])
def input_tokens(json_data: CountTokens) -> TokenCount:
    """Counts the prompt tokens that a response with this body would have; nothing is stored."""
    context = current_context()
    limits = context.prompt_limits.of(json_data.model)
    tenant = current_tenant()
    reasoning = json_data.reasoning.effort if json_data.reasoning else None
    choice = stored_choice(json_data.tool_choice)
    tools = () if choice.mode == "none" else functions_of(json_data.tools)
    told = RequestBody(reasoning=reasoning, template_variables=json_data.chat_template_kwargs or {})
    limits.check_template(told, effort="reasoning.effort")
    prompt_of = partial(
        prompt_of_turns, json_data.instructions, tools=tools, reasoning=reasoning, variables=told.template_variables
    )
    referenced = partial(referenced_items, context, current_tenant())
    turns = [] if json_data.input is None else turns_of(json_data.input, referenced)
    if json_data.previous_response_id is not None:
        turns = [*earlier_turns(context, tenant, json_data.previous_response_id), *turns]
    if not turns:
        raise InvalidRequest("Missing required parameter: 'input'.", param="input", code="missing")
    if json_data.truncation == "auto":
        turns = fitting(limits, turns, prompt_of, tenant)
    counts = limits.count_tokens(prompt_of(turns), param="input", tenant=tenant)
    return TokenCount(input_tokens=counts.prompt_tokens)
