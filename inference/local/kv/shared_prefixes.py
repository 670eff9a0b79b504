"""Finds the blocks that hold the beginning of a prompt, and remembers which of them was used least recently.

The key of a block is a hash over its tokens, over all tokens in front of them, and over a salt: rows with different
salts find none of each other's blocks. A registered block is complete, so that no row writes to it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice

KEY_BYTES = 16  # two prompts that share a key by chance are less likely than a fault of the memory


def extend_keys(keys: list[bytes], tokens: Sequence[int], salt: str, block_tokens: int) -> None:
    """Appends the keys of the complete blocks of `tokens` that follow those whose keys are known."""
    for start in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        before = keys[-1] if keys else blake2b(salt.encode(), digest_size=KEY_BYTES).digest()
        block = array("q", tokens[start : start + block_tokens]).tobytes()
        keys.append(blake2b(before + block, digest_size=KEY_BYTES).digest())


class SharedPrefixes:
    """Registered blocks by key; those that no row reads, in the order in which their last rows left."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._unread: dict[bytes, None] = {}  # the least recently used comes first

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    @property
    def unread(self) -> int:
        """The number of registered blocks that no row reads."""
        return len(self._unread)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Returns the blocks of the first keys, up to the first key that is unknown."""
        found = []
        for key in keys:
            if key not in self._block_of:
                break
            found.append(self._block_of[key])
        return found

    def register(self, blocks: Iterable[int], keys: Iterable[bytes]) -> None:
        """Registers blocks that rows read; of two blocks with the same tokens only the first is registered."""
        for block, key in zip(blocks, keys, strict=False):
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key], self._key_of[block] = block, key

    def read(self, block: int) -> None:
        """Notes that a row reads a registered block that no other row reads."""
        del self._unread[self._key_of[block]]

    def leave(self, block: int) -> None:
        """Notes that the last row has left a registered block."""
        self._unread[self._key_of[block]] = None

    def evict(self, count: int) -> list[int]:
        """Forgets and returns the least recently used blocks that no row reads."""
        evicted = []
        for key in [*islice(self._unread, max(0, count))]:
            del self._unread[key]
            block = self._block_of.pop(key)
            del self._key_of[block]
            evicted.append(block)
        return evicted

    def move(self, moved_to: Mapping[int, int]) -> None:
        """Notes that the contents of blocks have moved to other blocks, all at once."""
        keys = {moved_to[block]: self._key_of.pop(block) for block in moved_to if block in self._key_of}
        self._key_of |= keys
        self._block_of |= {key: block for block, key in keys.items()}
