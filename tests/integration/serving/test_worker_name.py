"""Two processes under one worker's name: the second one waits for the end of the first, and else does not start."""

import os

import pytest

from models.leasing.worker_registration import deregister, register
from models.process_identity import this_process
from tasks.serving.worker_process import NameTaken, await_name
from tests.integration.database_stage import Stage, facts

LEASE_S = 0.3
HOST = this_process().rpartition(":")[0]
NO_PROCESS = 2**22 + 1  # beyond Linux's largest process id


def registered(stage: Stage, instance: str) -> float:
    with stage.database.begin() as connection:
        return register(connection, facts(instance=instance))


def beat(stage: Stage) -> None:
    stage.sql("update workers set heartbeat_at = clock_timestamp()")


def test_a_name_that_a_living_process_of_another_host_has_is_refused_with_both_hosts(stage: Stage) -> None:
    registered(stage, "gpu-7:41")
    with pytest.raises(NameTaken) as refused:
        await_name(stage.database, "w1", "gpu-8:41", LEASE_S, pause=lambda _: beat(stage))
    assert "w1 of gpu-7:41 is alive, so that of gpu-8:41 does not start" in str(refused.value)


def test_a_name_of_a_living_process_of_this_host_is_refused_as_well(stage: Stage) -> None:
    registered(stage, this_process().replace(str(os.getpid()), str(os.getppid())))
    with pytest.raises(NameTaken):
        await_name(stage.database, "w1", this_process(), LEASE_S, pause=lambda _: beat(stage))


def test_a_living_process_of_another_host_with_the_same_name_is_not_replaced(stage: Stage) -> None:
    twin = f"{HOST.partition('#')[0]}#another boot"
    registered(stage, f"{twin}:{NO_PROCESS}")
    with pytest.raises(NameTaken):
        await_name(stage.database, "w1", this_process(), LEASE_S, pause=lambda _: beat(stage))


def unasked(seconds: float) -> None:
    raise AssertionError("it waited")


@pytest.mark.parametrize(
    "instance",
    [f"{HOST}:{NO_PROCESS}", this_process(), None],
    ids=["ended process", "this process", "an earlier release's row"],
)
def test_a_process_of_this_host_that_is_gone_is_replaced_at_once(stage: Stage, instance: str) -> None:
    registered(stage, instance)
    await_name(stage.database, "w1", this_process(), LEASE_S, pause=unasked)


def test_a_process_of_another_host_is_replaced_once_its_heartbeat_is_a_lease_old(stage: Stage) -> None:
    registered(stage, "gpu-7:41")
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        stage.sql("update workers set heartbeat_at = heartbeat_at - interval '0.2 s'")

    await_name(stage.database, "w1", "gpu-8:41", LEASE_S, pause)
    assert 1 <= len(waits) <= 2


def test_a_name_that_was_signed_off_is_free(stage: Stage) -> None:
    incarnation = registered(stage, "gpu-7:41")
    with stage.database.begin() as connection:
        deregister(connection, "w1", incarnation, failed=False)
    await_name(stage.database, "w1", "gpu-8:41", LEASE_S, pause=unasked)
