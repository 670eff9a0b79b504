"""Gives a worker's name to one process: a second one waits for the end of the first, and fails after a lease."""

from collections.abc import Callable
from time import monotonic, sleep

from sqlalchemy import Engine

from models.leasing.worker_registration import other_process
from models.process_identity import has_ended

LOOK_AGAIN_S = 0.5  # seconds between two looks at the heartbeat of the other process; not tuned
# A worker without a batch writes a heartbeat every 1.5 s; one that was lost is not seen as alive after this wait.
MARGIN_S = 2.0


class NameTaken(Exception):
    """Another living process serves under this worker's name."""


def await_name(
    database: Engine, name: str, instance: str, lease_s: float, pause: Callable[[float], None] = sleep
) -> None:
    """Returns once no living process has the name; raises NameTaken if one has it for longer than a lease."""
    give_up_at = monotonic() + lease_s + MARGIN_S
    while True:
        with database.connect() as connection:
            other = other_process(connection, name, instance, lease_s)
        if other is None or has_ended(other):
            return
        if monotonic() > give_up_at:
            raise NameTaken(
                f"the worker {name} of {other} is alive, so that of {instance} does not start: "
                "give each worker a name of its own with --name"
            )
        pause(LOOK_AGAIN_S)
