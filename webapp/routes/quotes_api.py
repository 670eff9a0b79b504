"""/v1/magnus/quotes: what a call would be promised, and its price; /v1/magnus/promises: which promises were kept."""

import time
from functools import partial

from apiflask import APIBlueprint
from flask import g

from models.operations.promise_book import read_book
from models.tenants.api_keys import Scope
from protocol.bulk.bulk_schemas import QuoteBatch
from protocol.chat.chat_schemas import CreateChatCompletion, CreateCompletion
from protocol.chat.chat_submissions import chat_submission, completion_submissions
from protocol.client_errors import InvalidRequest
from protocol.quotes.quote_objects import CreateQuote, PromiseReport, Quote
from protocol.requests.several_answers import several
from protocol.requests.submission import Submission
from protocol.responses.response_schemas import CreateResponse
from protocol.responses.response_submission import response_submission
from webapp.bulk.batch_quotes import quote_for_batch
from webapp.context.app_context import current_context
from webapp.context.auth import current_caller, current_tenant
from webapp.requests.quotes import quote_for
from webapp.requests.request_storing import checked_request
from webapp.requests.stored_conversations import earlier_turns, referenced_items
from webapp.routes.files_api import find_file

api = APIBlueprint("quotes", __name__, url_prefix="/v1/magnus", tag="Magnus")


@api.post("/quotes")
@api.input(CreateQuote)
@api.output(Quote)
@api.doc(summary="Quote a call", security="ApiKey", responses=[400, 401, 403, 404, 413, 429, 503])
def quote(json_data: CreateQuote) -> Quote:
    """Offers for a call's body when its answer comes, or for a file when its batch ends, and the price, in each tier.

    The same body with an offer's id as `magnus.quote` accepts it, once, while the quote holds.
    """
    context, asked = current_context(), json_data.root
    if isinstance(asked, QuoteBatch):
        file = find_file(asked.input_file_id)
        return quote_for_batch(context, asked, current_tenant(), file, time.time())
    submissions = _submissions(asked)
    if len(submissions) > 1:
        raise InvalidRequest("A quote is for one answer: quote each of them.", param="n", code="several_answers")
    new, _ = checked_request(context, submissions[0])
    return quote_for(context, submissions[0], new, time.time())


@api.get("/promises")
@api.output(PromiseReport)
@api.doc(summary="Which promises were kept", security="ApiKey", responses=[401, 403, 429, 503])
def promises() -> PromiseReport:
    """Returns the promises of the last day and week: of the key's tenant, or of all with the scope `operate`.

    With MAGNUS_PUBLIC_PROMISES those of all are also told without a key.
    """
    context = current_context()
    if "caller" not in g or Scope.operate in current_caller().scopes:
        return PromiseReport.model_validate(context.promise_book.get())
    with context.sessions() as session:
        return PromiseReport.model_validate(read_book(session, current_tenant()))


def _submissions(body: CreateChatCompletion | CreateCompletion | CreateResponse) -> list[Submission]:
    context, tenant = current_context(), current_tenant()
    if isinstance(body, CreateChatCompletion):
        return several(chat_submission(body, tenant, context.prompt_limits), body.n or 1)
    if isinstance(body, CreateCompletion):
        return completion_submissions(body, tenant, context.prompt_limits)
    earlier, referenced = partial(earlier_turns, context, tenant), partial(referenced_items, context, tenant)
    return [response_submission(body, tenant, context.prompt_limits, None, earlier, referenced)]
