"""Finds the blocks that hold the beginning of a prompt, and remembers which of them was used least recently.

The key of a block is a hash over its tokens, over all tokens in front of them, and over a salt: rows with different
salts find none of each other's blocks. A registered block is complete, so that no row writes to it. A row that differs
from it within the block copies the tokens in front of the difference: they are found in steps of PART_TOKENS.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice

KEY_BYTES = 16  # two prompts that share a key by chance are less likely than a fault of the memory
# The beginnings of a block can be found in steps of this many tokens. Half a step, two tokens, is computed in vain on
# average; smaller steps take more keys. Not tuned.
PART_TOKENS = 4


def extend_keys(keys: list[bytes], tokens: Sequence[int], salt: str, block_tokens: int) -> None:
    """Appends the keys of further complete blocks of `tokens` to `keys`, which has those of the first blocks."""
    for start in range(len(keys) * block_tokens, len(tokens) - block_tokens + 1, block_tokens):
        keys.append(_key(_key_before(keys, len(keys), salt), tokens[start : start + block_tokens]))


def keys_of_parts(keys: Sequence[bytes], number: int, tokens: Sequence[int], salt: str) -> list[bytes]:
    """Returns the keys of the beginnings of block `number`, which has these tokens, the shortest first.

    `keys` has at least the keys of all blocks in front of it.
    """
    before = _key_before(keys, number, salt)
    return [_key(before, tokens[:count]) for count in range(PART_TOKENS, len(tokens), PART_TOKENS)]


def _key_before(keys: Sequence[bytes], number: int, salt: str) -> bytes:
    return keys[number - 1] if number else blake2b(salt.encode(), digest_size=KEY_BYTES).digest()


def _key(before: bytes, tokens: Sequence[int]) -> bytes:
    return blake2b(before + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


class SharedPrefixes:
    """Registered blocks by key, and the order in which the last rows left those that no row reads now."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._unread: dict[bytes, None] = {}  # keys of unread blocks, the least recently used one first
        self._begun_by: dict[bytes, bytes] = {}  # by the key of a part, the key of the newest block that begins with it
        self._parts_of: dict[bytes, Sequence[bytes]] = {}

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

    def find_part(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Returns a block with the longest known part, and the part's tokens; or (0, 0). `parts` are shortest first."""
        for number in range(len(parts), 0, -1):
            if parts[number - 1] in self._begun_by:
                return self._block_of[self._begun_by[parts[number - 1]]], number * PART_TOKENS
        return 0, 0

    def register(self, blocks: Iterable[int], keys: Iterable[bytes]) -> list[int]:
        """Registers blocks that rows read; returns the numbers of those that were not registered before.

        Of two blocks with the same tokens only the first is registered.
        """
        new = []
        for number, (block, key) in enumerate(zip(blocks, keys, strict=False)):
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key], self._key_of[block] = block, key
                new.append(number)
        return new

    def register_parts(self, key: bytes, parts: Sequence[bytes]) -> None:
        """Lets rows find the parts of the registered block that has this key."""
        self._parts_of[key] = parts
        self._begun_by |= dict.fromkeys(parts, key)

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
            for part in self._parts_of.pop(key, ()):
                if self._begun_by.get(part) == key:
                    del self._begun_by[part]
            evicted.append(block)
        return evicted

    def move(self, moved_to: Mapping[int, int]) -> None:
        """Notes that the contents of blocks have moved to other blocks, all at once."""
        keys = {moved_to[block]: self._key_of.pop(block) for block in moved_to if block in self._key_of}
        self._key_of |= keys
        self._block_of |= {key: block for block, key in keys.items()}
