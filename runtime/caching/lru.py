# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the entries that were used last, up to a number of bytes. (pure)

An entry may have prepared answers besides: what a server answers to a certain request from this entry. They save the
server the work of finding the key of a request and of encoding the entry. They take a part of the same bytes, and are
forgotten with their entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol

from pyruntime.utils.errors import LocalError

# The memory that an entry, or a prepared answer, takes beside its contents, in bytes, about: its key, and its place.
OVERHEAD_BYTES = 256
# Prepared answers take at most this part of all bytes, so that they cost few entries their place.
ANSWERS_SHARE = 1 / 8


class Answer(Protocol):
    """An encoded response to all requests that differ in nothing but their ids."""

    def parts(self, id: str) -> list[bytes | memoryview]:
        """The bytes of the response to the request with an id, "" for none."""


class LeastRecentlyUsed:
    """Entries of at most `size` bytes in all, with OVERHEAD_BYTES for each. `evictions` counts those that made room."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._used = 0
        self.evictions = 0
        # By request: the key of the entry, the answer, and the bytes that they take.
        self._answers: OrderedDict[Hashable, tuple[str, Answer, int]] = OrderedDict()
        self._answers_used = 0
        # The requests with an answer from an entry, by its key.
        self._requests: dict[str, set[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used(self) -> int:
        """The bytes that the entries and their answers take."""
        return self._used

    def find(self, key: str) -> bytes | None:
        """The entry of a key, which is the last one used now; None if there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def find_answer(self, request: Hashable) -> Answer | None:
        """The prepared answer to a request, None if there is none. Its entry is the last one used now."""
        found = self._answers.get(request)
        if found is None:
            return None
        self._answers.move_to_end(request)
        self._entries.move_to_end(found[0])
        return found[1]

    def add(self, key: str, entry: bytes) -> None:
        """Add an entry, unless the key has one; those that were not used for longest make room.

        Raises LocalError if it is larger than all room, and then changes nothing.
        """
        if key in self._entries:
            return
        needed = len(entry) + OVERHEAD_BYTES
        if needed > self.size:
            raise LocalError(f"Requested byte_size: {needed} is greater than total cache size: {self.size}")
        self._make_room(needed)
        self._entries[key] = entry
        self._used += needed

    def add_answer(self, key: str, request: Hashable, answer: Answer, size: int) -> None:
        """Prepare the answer from an entry to a request, both of `size` bytes together, unless the request has one.

        Does nothing if the entry is gone, or if there is no room for both.
        """
        entry = self._entries.get(key)
        needed, room = size + OVERHEAD_BYTES, int(self.size * ANSWERS_SHARE)
        if entry is None or request in self._answers:
            return
        if needed > room or needed + len(entry) + OVERHEAD_BYTES > self.size:
            return
        while self._answers_used + needed > room:
            self._forget(next(iter(self._answers)))
        self._entries.move_to_end(key)
        self._make_room(needed)
        self._answers[request] = key, answer, needed
        self._requests.setdefault(key, set()).add(request)
        self._answers_used += needed
        self._used += needed

    def _make_room(self, needed: int) -> None:
        """Evict entries until there is room for `needed` bytes."""
        while self._used + needed > self.size:
            key, gone = self._entries.popitem(last=False)
            self._used -= len(gone) + OVERHEAD_BYTES
            self.evictions += 1
            for request in list(self._requests.get(key, ())):
                self._forget(request)

    def _forget(self, request: Hashable) -> None:
        """Forget the answer to a request."""
        key, _, taken = self._answers.pop(request)
        self._answers_used -= taken
        self._used -= taken
        requests = self._requests[key]
        requests.remove(request)
        if not requests:
            del self._requests[key]
