"""Loads the newest published model that can be read, and sets unreadable versions aside."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from learning.store import Unreadable, load
from models import model_versions

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model with its version; `until` is when the newest outcome that it was fitted to ended, seconds since epoch."""

    version: str
    model: Any
    until: float


def load_active(begin: Callable[[], AbstractContextManager[Connection]], kind: str) -> PublishedModel | None:
    """Returns the model of this kind in service, or None; sets newer unreadable ones aside with the reason.

    Loading, which may load a large encoder, takes place between the transactions that `begin` begins.
    """
    while True:
        with begin() as connection:
            published = model_versions.active_version(connection, kind)
        if published is None:
            return None
        try:
            return PublishedModel(published.version, load(published.stored, published.sha256), published.until)
        except Unreadable as error:
            log.error("model set aside", version=published.version, error=str(error))
            with begin() as connection:
                model_versions.set_aside(connection, published.version, str(error))
