"""What tells groups of prompts apart: their application, or their application and instruction."""

import hashlib


def group_key(*parts: str) -> str:
    """The key of an application, or of an application and an instruction.

    Only a digest is kept, because instructions may be long and private.
    """
    return hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
