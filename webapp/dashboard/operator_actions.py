"""An action of an operator: recorded before it is done, and shown by the pages that are read after it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy.orm import Session

from models.operations import operator_access
from webapp.context.app_context import current_context
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_sign_in import current_operator


@contextmanager
def operator_action(action: str, target: str, details: Mapping[str, Any] | None = None) -> Iterator[Session]:
    """Records an action of the current operator; gives the session in which it is done, and commits it."""
    context = current_context()
    with context.sessions() as session:
        operator_access.record_action(session, current_operator().name, action, target, details)
        yield session
        session.commit()
    current_dashboard().reads.forget()
