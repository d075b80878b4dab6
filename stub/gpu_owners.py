# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The owners of tensors on GPUs that other processes read where they lie.

An owner is kept until all have read its tensor. It may use the memory for others when nobody keeps it.
"""

from __future__ import annotations

from typing import ContextManager, Dict, List


class Owners:
    """See the module. Thread-safe. The destructor of an owner runs without `lock`."""

    def __init__(self, lock: ContextManager[None]) -> None:
        self._lock = lock
        self._held: Dict[int, List[object]] = {}

    def hold(self, at: int, owner: object) -> None:
        """Keep the owner of the tensor at an address until `let_go`, which is called as often."""
        with self._lock:
            self._held.setdefault(at, []).append(owner)

    def let_go(self, at: int) -> bool:
        """Whether the tensor at an address has an owner, which is kept once less now."""
        with self._lock:
            owners = self._held.get(at)
            if owners is None:
                return False
            owner = owners.pop()  # any of them: all own the same memory
            if not owners:
                del self._held[at]
        del owner  # without the lock, since it may have a destructor
        return True
