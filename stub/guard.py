# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Guards mappings of memory that another process may shrink.

An access behind the end of the memory is then no bus error: it finds zeros, and the guard is hit. See native/guard.c.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

from pyruntime.utils.arena import PAGE_BYTES
from pyruntime.utils.errors import LocalError

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "_guard.abi3.so")


class Guard:
    """The guard of one mapping, which begins at the address `pointer` and has `size` bytes.

    Raises LocalError if there are too many, and OSError if bus errors cannot be handled. `end` must be called before
    the mapping ends.
    """

    __slots__ = ("_hit", "_number")

    def __init__(self, pointer: int, size: int) -> None:
        self._hit = False
        self._number = -1
        # A model may have installed a handler of its own since the last guard, as faulthandler.enable() does.
        if _library().guard_install():
            raise OSError(ctypes.get_errno(), "bus errors cannot be handled")
        self._number = _library().guard_add(pointer, -(-size // PAGE_BYTES) * PAGE_BYTES)
        if self._number < 0:
            raise LocalError("this process maps too many tensors in memory of clients")

    @property
    def is_hit(self) -> bool:
        """Whether memory was missing when it was read or written. It stays so after the end."""
        return self._hit or (self._number >= 0 and bool(_library().guard_hit(self._number)))

    def end(self) -> None:
        """Stop to guard. Does nothing if called again."""
        if self._number >= 0:
            self._hit = self.is_hit
            _library().guard_remove(self._number)
            self._number = -1


@lru_cache(maxsize=None)
def _library() -> ctypes.PyDLL:
    """The library. Raises OSError if it cannot be loaded."""
    library = ctypes.PyDLL(LIBRARY, use_errno=True)
    library.guard_add.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    return library
