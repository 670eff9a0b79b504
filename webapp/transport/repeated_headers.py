"""Tells the app which headers a client sent more than once: gunicorn joins their values as one."""

from collections import Counter

from werkzeug.datastructures import Headers

REPEATED = "REPEATED HEADERS"  # a header of this name, which no client can send: its name has a blank


def add_repeated(headers: list[tuple[str, str]]) -> None:
    """Adds a header with the names of the headers that came more than once."""
    repeated = [name for name, times in Counter(name for name, _ in headers).items() if times > 1]
    if repeated:
        headers.append((REPEATED, ",".join(repeated)))


def came_twice(headers: Headers, name: str) -> bool:
    """Returns whether a header came more than once."""
    return name.upper() in headers.get(REPEATED, "").split(",")
