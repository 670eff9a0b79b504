"""Lets one other user pass through the directories above a path, by an access control list (Linux).

The embedded Postgres refuses to run as root, so root starts it as another user, who must reach its files.
"""

import errno
import os
import stat
import struct
import sys
from pathlib import Path

from cli.output import CommandFailed

ACL = "system.posix_acl_access"  # the extended attribute; its layout is fixed by the kernel, see acl(5)
VERSION, ENTRY = struct.Struct("<I"), struct.Struct("<HHI")  # the version; an entry's tag, permissions, id
USER_OBJ, USER, GROUP_OBJ, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
NO_ID = 0xFFFFFFFF
TRAVERSE = 1  # the x bit: pass through, without listing


class NotPassable(CommandFailed):
    """Another user must pass through a directory whose file system has no access control lists."""

    def __init__(self, directory: Path, uid: int) -> None:
        super().__init__(
            f"user {uid} must pass through {directory}, which its file system cannot allow for one user alone; "
            f"choose another --state-dir, run as another user than root, or allow everybody: chmod o+x {directory}"
        )


def let_traverse(user: tuple[int, int], *paths: Path) -> None:
    """Let a user, given by uid and gid, pass through all directories above these paths; raises NotPassable."""
    for directory in sorted({parent for path in paths for parent in path.parents}):
        if not _may_traverse(user, directory.stat()):
            _grant(user[0], directory)


def _may_traverse(user: tuple[int, int], found: os.stat_result) -> bool:
    uid, gid = user
    if found.st_uid == uid:
        return bool(found.st_mode & stat.S_IXUSR)
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH))


def _grant(uid: int, directory: Path) -> None:
    """Add the user's entry to the directory's access control list, and the permission to the mask."""
    if sys.platform != "linux":
        raise NotPassable(directory, uid)
    mode = directory.stat().st_mode
    entries = {(USER_OBJ, NO_ID): mode >> 6 & 7, (GROUP_OBJ, NO_ID): mode >> 3 & 7, (OTHER, NO_ID): mode & 7}
    try:
        present = os.getxattr(directory, ACL)
        entries = {(tag, who): bits for tag, bits, who in ENTRY.iter_unpack(present[VERSION.size :])}
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise NotPassable(directory, uid) from error
    entries[USER, uid] = entries.get((USER, uid), 0) | TRAVERSE
    entries[MASK, NO_ID] = entries.get((MASK, NO_ID), entries[GROUP_OBJ, NO_ID]) | TRAVERSE
    packed = b"".join(ENTRY.pack(tag, bits, who) for (tag, who), bits in sorted(entries.items()))
    try:
        os.setxattr(directory, ACL, VERSION.pack(2) + packed)
    except OSError as error:
        raise NotPassable(directory, uid) from error
