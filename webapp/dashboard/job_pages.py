"""Jobs of all tenants: search, filter, sort, pages, actions on all jobs that match; one job with its life and texts."""

from collections.abc import Mapping, Sequence
from typing import Literal

from flask import abort, redirect, render_template, request, url_for
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from models import client_requests
from models.client_requests import RequestView
from models.operations import operator_access, operator_jobs
from models.operations.operator_jobs import MOST_AT_ONCE, JobFilter
from models.planning.queue_position import place_in_queue, told_at_submission
from models.planning.waiting_reasons import waits_for
from models.tables import RequestStatus
from webapp.context.app_context import current_context
from webapp.dashboard.application_names import names_for_operator
from webapp.dashboard.charts.timelines import job_life
from webapp.dashboard.operator_actions import operator_action
from webapp.dashboard.operator_sign_in import current_operator
from webapp.requests.stored_requests import RESPONSE_ID

SHOWN = 50  # rows of a page; not tuned
# The statuses of the jobs that each action changes; it leaves jobs in other statuses alone.
ACTS_ON = {
    "cancel": (RequestStatus.queued, RequestStatus.in_progress),
    "retry": (RequestStatus.failed, RequestStatus.cancelled),
}


class JobQuery(BaseModel):
    """The filter and the order of the list of jobs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field("", pattern=r"^\s*(resp_[0-9a-f]{0,32}|[0-9a-f]{4,32})?\s*$")
    status: RequestStatus | None = None
    tenant: str | None = Field(None, max_length=512)
    application: str | None = Field(None, max_length=512)
    order: Literal["newest", "oldest", "slowest"] = "newest"
    after: str | None = Field(None, pattern=RESPONSE_ID.pattern)

    @property
    def prefix(self) -> str:
        """The beginning of the ids to find; empty if no id was given."""
        given = self.id.strip()
        return given if given.startswith("resp_") or not given else f"resp_{given}"

    @property
    def filters(self) -> dict[str, str]:
        """The fields of the filter that are set, by name: status, tenant, application."""
        return {name: value for name in ("status", "tenant", "application") if (value := getattr(self, name))}

    def which(self, action: str | None = None) -> JobFilter:
        """Returns the filter of the jobs that match, or of those that an action on all of them changes."""
        among = RequestStatus if action is None else ACTS_ON[action]
        statuses = tuple(status for status in among if self.status in (None, status))
        return JobFilter(statuses, self.tenant, self.application)


def jobs() -> str | Response:
    """Shows a page of jobs; redirects a whole id to the page of its job."""
    query = read_query(request.args)
    if RESPONSE_ID.fullmatch(query.prefix):
        return redirect(url_for("dashboard.one_job", id=query.prefix), 303)
    views, more = _found(query)
    by_filter = not query.prefix and query.order != "slowest"
    with current_context().sessions() as session:
        number = operator_jobs.count_jobs(session, query.which()) if by_filter else len(views)
        acts_on = {
            action: operator_jobs.count_jobs(session, query.which(action))
            for action in ACTS_ON
            if by_filter and query.filters and current_operator().may_act
        }
    applications = [view.request.application for view in views] + ([query.application] if query.application else [])
    return render_template(
        "jobs.html",
        query=query,
        views=views,
        number=number,
        most=MOST_AT_ONCE,
        more=more,
        statuses=list(RequestStatus),
        acts_on={action: matching for action, matching in acts_on.items() if matching},
        names=names_for_operator(applications),
    )


def confirm_jobs() -> str:
    """Shows how many jobs an action would change, and asks for confirmation."""
    query, action = _filter(request.args), _action(request.args)
    with current_context().sessions() as session:
        number = operator_jobs.count_jobs(session, query.which(action))
    return render_template(
        "jobs_confirm.html",
        query=query,
        action=action,
        number=min(number, MOST_AT_ONCE),
        more=number > MOST_AT_ONCE,
        names=names_for_operator([query.application] if query.application else []),
    )


def act_on_jobs() -> str:
    """Cancels all jobs that match, or submits them again; at most MOST_AT_ONCE."""
    action = _action(request.form)
    query = _filter(request.form)
    with current_context().sessions() as session:
        ids = operator_jobs.matching_jobs(session, query.which(action))[:MOST_AT_ONCE]
    details = {"matching": len(ids), "said": request.form.get("number", ""), **query.model_dump(exclude_none=True)}
    with operator_action(f"{action} jobs", "all that match", details) as session:
        done = _act(session, action, ids)
    return render_template("jobs_done.html", action=action, done=len(done), matched=len(ids), query=query)


def act_on_job(id: str) -> Response:
    """Cancels one job, or submits it again; redirects to its page or to that of the new job."""
    action = _action(request.form)
    if not RESPONSE_ID.fullmatch(id):
        abort(404)
    with operator_action(action, f"job {id}") as session:
        done = _act(session, action, [id])
    if action == "retry" and not done:
        abort(409, "Only a failed or cancelled job whose texts are still stored can be submitted again.")
    return redirect(url_for("dashboard.one_job", id=done[0] if action == "retry" else id), 303)


def read_query(values: Mapping[str, str]) -> JobQuery:
    """Returns the query of an address or a form; answers 400 if a value is invalid."""
    try:
        return JobQuery.model_validate({name: value for name, value in values.items() if value})
    except ValidationError:
        abort(400)


def _filter(values: Mapping[str, str]) -> JobQuery:
    """Returns the query of an action on all jobs that match; answers 400 if it has no filter."""
    query = read_query(values)
    if not query.filters:
        abort(400, "Choose a state, a tenant or an application: without one, the jobs of all tenants would match.")
    return query


def _action(values: Mapping[str, str]) -> str:
    action = values.get("action", "")
    if action not in ACTS_ON:
        abort(400)
    return action


def _act(session: Session, action: str, ids: Sequence[str]) -> Sequence[str]:
    if action == "retry":
        made = operator_jobs.submit_again(session, ids, current_context().priority_requests)
        current_context().announcer.announce()
        return made
    return operator_jobs.cancel_jobs(session, ids)


def _found(query: JobQuery) -> tuple[Sequence[RequestView], bool]:
    with current_context().sessions() as session:
        if query.prefix:
            return operator_jobs.jobs_with_prefix(session, query.prefix, SHOWN), False
        if query.order == "slowest":
            return operator_jobs.slowest_jobs(session, SHOWN, query.tenant, query.application), False
        page = client_requests.page(
            session,
            query.tenant,
            statuses=[query.status] if query.status else [],
            application=query.application,
            after=query.after,
            limit=SHOWN,
            oldest_first=query.order == "oldest",
        )
    if page is None:
        abort(404)
    return page.entries, page.more


def one_job(id: str) -> str:
    """Shows a job without its texts."""
    return _page(id, texts=False)


def job_texts(id: str) -> str:
    """Shows a job with its texts, and records in the audit that the operator read them."""
    if not current_operator().may_read_texts:
        abort(403, "Prompts and answers are shown to keys with the scopes `operate` and `read`.")
    with current_context().sessions() as session:
        operator_access.record_action(session, current_operator().name, "read texts", f"job {id}")
    return _page(id, texts=True)


def _page(id: str, texts: bool) -> str:
    if not RESPONSE_ID.fullmatch(id):
        abort(404)
    with current_context().sessions() as session:
        view = client_requests.fetch(session, None, id)
        if view is None:
            abort(404)
        mates = operator_jobs.batch_mates(session, view)
    snapshot = current_context().queue_snapshot.get()
    place = place_in_queue(view, snapshot)
    names = names_for_operator([view.request.application, *(mate.application for mate in mates)])
    return render_template(
        "job.html",
        view=view,
        place=place,
        told=told_at_submission(view.request),
        waits_for=waits_for(view, snapshot, place),
        mates=mates,
        names=names,
        life=job_life(view),
        texts=texts,
    )
