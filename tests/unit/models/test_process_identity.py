import os

from models.process_identity import has_ended, this_process

NO_PROCESS = 2**22 + 1  # beyond Linux's largest process id
HOST = this_process().rpartition(":")[0]


def test_a_process_of_this_host_has_ended_once_its_id_is_free():
    assert not has_ended(this_process())
    assert not has_ended(f"{HOST}:{os.getppid()}")
    assert has_ended(f"{HOST}:{NO_PROCESS}")


def test_nothing_is_known_of_a_process_of_another_host_even_of_the_same_name():
    name = HOST.partition("#")[0]
    assert name != HOST
    for host in ("gpu-7", name, f"{name}#another boot"):
        assert not has_ended(f"{host}:{NO_PROCESS}")
