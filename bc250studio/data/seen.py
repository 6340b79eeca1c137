"""Have I seen this text before? A set of 64-bit digests in 16 bytes an entry, for files with millions of rows."""

from __future__ import annotations

import hashlib
from array import array


def digest64(text: str) -> int:
    """A 64-bit digest of a text (BLAKE2b), never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


class Seen:
    """Maps a digest to the number given with it first; open addressing, grown at two thirds full."""

    def __init__(self, size: int = 1 << 12) -> None:
        self._keys, self._values = array("Q", bytes(8 * size)), array("Q", bytes(8 * size))
        self._mask, self._count = size - 1, 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return self._keys[self._slot(key)] == key

    def add(self, key: int, value: int) -> int | None:
        """Remember ``key``; the value it was first added with when it is known already, else None."""
        slot = self._slot(key)
        if self._keys[slot] == key:
            return self._values[slot]
        self._keys[slot], self._values[slot] = key, value
        self._count += 1
        if self._count * 3 > len(self._keys) * 2:
            self._grow()
        return None

    def _slot(self, key: int) -> int:
        keys, mask = self._keys, self._mask
        slot = key & mask
        while keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        keys, values = self._keys, self._values
        size = len(keys) * 2
        self._keys, self._values, self._mask = array("Q", bytes(8 * size)), array("Q", bytes(8 * size)), size - 1
        for key, value in zip(keys, values, strict=True):
            if key:
                slot = self._slot(key)
                self._keys[slot], self._values[slot] = key, value
