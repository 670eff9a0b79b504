"""Names applications on pages: by the name that the client gave, else by the first words of the instructions.

Instructions are texts of clients: only an operator who may read texts sees their words, and the audit records that once
for each session and web process. Other operators see the digest of the instructions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from models.operations import operator_access
from protocol.requests.client_prompt import application_name
from webapp.context.app_context import current_context
from webapp.dashboard.dashboard_context import current_dashboard
from webapp.dashboard.operator_sign_in import current_operator

WITHOUT_INSTRUCTIONS = application_name({}, "")


def names_for_operator(applications: Iterable[str]) -> Mapping[str, str]:
    """Returns the name of each of these applications on the current operator's page."""
    shown = set(applications)
    names = {name: "no instructions" if name == WITHOUT_INSTRUCTIONS else name for name in shown}
    if not current_operator().may_read_texts:
        return names
    words = current_dashboard().reads.words.get(shown - {WITHOUT_INSTRUCTIONS})
    if words:
        _record_reading()
    alike = Counter(words.values())
    return names | {name: f"“{some}”" + f" {name[:4]}" * (alike[some] > 1) for name, some in words.items()}


def _record_reading() -> None:
    operator, readers = current_operator(), current_dashboard().reads.readers_of_words
    if operator.form_token is not None and operator.form_token not in readers:
        with current_context().sessions() as session:
            operator_access.record_action(session, operator.name, "read texts", "first words of instructions")
        readers.add(operator.form_token)
