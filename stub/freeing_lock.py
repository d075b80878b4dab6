# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A lock of memory that destructors free.

A destructor runs in any thread, between any two steps, also in one that has the lock: it must not wait for it. So it
leaves behind what is to be freed. The thread that has the lock frees it as soon as the lock is free again.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, Deque, Generic, TypeVar

T = TypeVar("T")


class FreeingLock(Generic[T]):
    """See the module. `free` is called without the lock, which it may take, by one thread at a time."""

    def __init__(self, free: Callable[[T], None]) -> None:
        self._free = free
        self._lock = threading.Lock()
        self._freeing = threading.Lock()
        self._taken_back: Deque[T] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *details: object) -> None:
        self._lock.release()
        self._free_taken_back()

    def take_back(self, what: T) -> None:
        """Have something freed: at once, or behind the lock, or by the thread that frees other things just now."""
        self._taken_back.append(what)
        self._free_taken_back()

    def _free_taken_back(self) -> None:
        # Nothing is left behind: the thread that has either lock looks again after it has released it.
        while self._taken_back and not self._lock.locked() and self._freeing.acquire(False):
            try:
                if self._taken_back:  # another thread may have freed it before
                    self._free(self._taken_back.popleft())
            finally:
                self._freeing.release()
