"""Loads the newest published model that can be read, and sets unreadable versions aside."""

from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from learning.store import Unreadable, load
from models import model_versions

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A model with its version; `until` is the end of the newest outcome in its fit, seconds since epoch."""

    version: str
    model: Any
    until: float


def load_active(connection: Connection, kind: str) -> PublishedModel | None:
    """Returns the model of this kind in service, or None; sets newer unreadable ones aside with the reason."""
    while (published := model_versions.active_version(connection, kind)) is not None:
        try:
            return PublishedModel(published.version, load(published.stored, published.sha256), published.until)
        except Unreadable as error:
            log.error("model set aside", version=published.version, error=str(error))
            model_versions.set_aside(connection, published.version, str(error))
    return None
