"""Published models: which there are, and which is in service."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session, defer

from models.tables import ModelVersion


class UnknownVersion(Exception):
    """No published model has this version."""

    def __init__(self, version: str) -> None:
        self.version = version
        super().__init__(f"there is no model version {version}; `magnus models list` shows them all")


def every(session: Session) -> Sequence[ModelVersion]:
    """All versions without their bytes, newest first."""
    return session.scalars(
        select(ModelVersion).options(defer(ModelVersion.stored, raiseload=True)).order_by(ModelVersion.id.desc())
    ).all()


def activate(session: Session, version: str) -> None:
    """Put a version back into service in place of the one of its kind; raises UnknownVersion."""
    kind = session.scalar(select(ModelVersion.kind).where(ModelVersion.version == version))
    if kind is None:
        raise UnknownVersion(version)
    for active, chosen in ((False, ModelVersion.active), (True, ModelVersion.version == version)):
        session.execute(
            update(ModelVersion)
            .where(ModelVersion.kind == kind, chosen)
            .values(active=active)
            .execution_options(synchronize_session=False)
        )
