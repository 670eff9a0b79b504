"""Every statement of `models` that sets a request's status leads from state to state as the table of its life says."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import models
from models.request_life import LIFE, RequestStatus

UPDATE = re.compile(r"update requests(?: r)?(?: /\* ([\w, ]*) \*/)? set\s(.*?)(?=\b(?:from|where)\b)", re.S)
STATUS = re.compile(r"(?:^|,)\s*status = (.*?)(?:,\s*\w+ =|$)", re.S)
NEXT_STATUS = re.compile(r"case ([^()]*?) end\s+as next_status", re.S)  # where the statement computes it beforehand
STATES = "|".join(RequestStatus)
ANY_END = {status for status in RequestStatus if status.final}


@dataclass(frozen=True)
class Statement:
    """An update of a request's status: its events, and the states that it finds and sets by its text."""

    place: str
    events: frozenset[str]
    found: frozenset[str]
    set: frozenset[str]


def texts() -> Iterator[tuple[str, str]]:
    """Every string in `models` with its module; a computed part of it is an ellipsis."""
    for path in Path(models.__path__[0]).rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        strings: list[list[ast.expr]] = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
        parts = {part for values in strings for part in values}
        strings += [[node] for node in nodes if isinstance(node, ast.Constant) and node not in parts]
        for values in strings:
            yield path.stem, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in values)


def statements() -> Iterator[Statement]:
    """The statements that set the status of a request."""
    for place, text in texts():
        for update in UPDATE.finditer(text):
            status = STATUS.search(update[2])
            if status is None:
                continue
            elsewhere = text[: update.start(2)] + text[update.end(2) :]
            found = set(re.findall(rf"status = '({STATES})'", elsewhere))
            for several in re.findall(r"status in \((.*?)\)", elsewhere):
                found |= set(re.findall(STATES, several))
            after = set(re.findall(rf"(?:then|else|^) ?'({STATES})'", status[1]))
            if "else status" in status[1]:  # it keeps the states for which it names no other
                after |= found - set(re.findall(rf"when status = '({STATES})'", status[1]))
            if "next_status" in status[1]:
                after |= set(re.findall(rf"'({STATES})'", NEXT_STATUS.findall(text)[0]))
            if "a.status" in status[1]:  # the answer's
                after |= ANY_END
            events = frozenset((update[1] or "").split(", "))
            yield Statement(place, events, frozenset(found), frozenset(after))


@pytest.mark.parametrize("statement", list(statements()), ids=lambda statement: statement.place)
def test_a_statement_sets_the_states_to_which_its_events_lead(statement: Statement) -> None:
    allowed = {LIFE[RequestStatus(state)].get(event) for state in statement.found for event in statement.events}  # type: ignore[call-overload]
    assert statement.found
    assert statement.set == allowed - {None}
    for state in statement.found:
        assert LIFE[RequestStatus(state)].keys() & statement.events, f"nothing happens to a request that is {state}"


def test_each_event_in_each_state_is_some_statements() -> None:
    entries = {(state, event) for state, events in LIFE.items() for event in events}
    assert entries == {
        (RequestStatus(state), event)
        for one in statements()
        for state in one.found
        for event in one.events
        if event in LIFE[RequestStatus(state)]
    }


def test_a_request_is_stored_queued() -> None:
    inserted = [text for _, text in texts() if "insert into requests" in text]
    assert len(inserted) == 2
    assert not any(re.search(r"insert into requests \([^)]*\bstatus\b", text) for text in inserted)
