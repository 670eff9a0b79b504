"""One other user may pass through a directory, and the rights of everybody else stay as they were."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.hosting.traversal import ACL, ENTRY, NO_ID, USER, VERSION, let_traverse

SOMEBODY = (os.geteuid() + 40_001, os.getegid() + 40_001)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="access control lists of Linux")


def entries(directory: Path) -> dict[tuple[int, int], int]:
    if ACL not in os.listxattr(directory):
        return {}
    return {(tag, who): bits for tag, bits, who in ENTRY.iter_unpack(os.getxattr(directory, ACL)[VERSION.size :])}


def test_a_closed_directory_lets_that_user_alone_pass(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    let_traverse(SOMEBODY, closed / "data")
    assert entries(closed)[USER, SOMEBODY[0]] == 1
    assert closed.stat().st_mode & stat.S_IRWXO == 0
    assert entries(closed)[0x04, NO_ID] == 0  # the group's own rights


def test_who_was_let_in_before_stays_so(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    other = (SOMEBODY[0] + 1, SOMEBODY[1])
    for user in (SOMEBODY, other, SOMEBODY):
        let_traverse(user, closed / "data")
    assert {who for tag, who in entries(closed) if tag == USER} == {SOMEBODY[0], other[0]}


def test_an_open_directory_is_left_alone(tmp_path: Path):
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o711)
    let_traverse(SOMEBODY, opened / "data")
    assert entries(opened) == {}
    assert stat.S_IMODE(opened.stat().st_mode) == 0o711


def test_the_user_reaches_its_files_and_lists_nothing_above(tmp_path: Path):
    if os.geteuid() != 0:  # nobody else may become that user
        return
    data = tmp_path / "closed" / "data"
    data.mkdir(parents=True)
    data.parent.chmod(0o700)
    data.chmod(0o755)
    let_traverse(SOMEBODY, data)
    script = "import os, sys; os.listdir(sys.argv[1]); os.listdir(os.path.dirname(sys.argv[1]))"
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", script, str(data)],
        user=SOMEBODY[0],
        group=SOMEBODY[1],
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert f"Permission denied: '{data.parent}'" in done.stderr
