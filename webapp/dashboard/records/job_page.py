"""One job with its life; its prompt and answer are shown to who asks for them and may read them."""

from flask import abort, render_template

from models import client_requests
from models.operations import operator_access, operator_jobs
from models.planning.queue_position import place_in_queue
from webapp.app_context import current_context
from webapp.charts.job_life import job_life
from webapp.dashboard.operator_sign_in import current_operator
from webapp.submission import RESPONSE_ID


def one_job(id: str) -> str:
    """Everything but the texts."""
    return _page(id, texts=False)


def job_texts(id: str) -> str:
    """Everything; that somebody read the texts is recorded."""
    if not current_operator().may_read_texts:
        abort(403, "To read prompts and answers needs a key with the scope `read` beside `operate`.")
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
    place = place_in_queue(view, current_context().queue_snapshot.get())
    return render_template("job.html", view=view, place=place, mates=mates, life=job_life(view), texts=texts)
