# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps libraries that this process has loaded as they were then, whatever becomes of their files.

The loader maps a library from its file. Who writes to that file, as `cp` does, writes to the code that runs, and a file
that is cut off ends the process at the next look. So each mapping of a library is replaced by a copy in a sealed memfd,
at the same addresses and at one moment: code that runs there goes on.

To the loader nothing has changed: not the path, by which libraries find their neighbours and debuggers the symbols, nor
the inode, by which it knows a library again. Libraries that were loaded before are left alone, as they may be writing
to their data; those that were loaded just now have run nothing but their constructors.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Sequence

from pyruntime.utils.private_mappings import Mapping, is_in, mappings, replace

# A library with more bytes stays mapped from its file: the copy would be memory that the kernel cannot take back.
LIBRARY_BYTES_MAX = 1 << 30

# Two threads may load libraries in one folder.
_lock = threading.Lock()


@contextmanager
def private_libraries(places: Sequence[str], warn: Callable[[str], None]) -> Iterator[None]:
    """Libraries that are loaded meanwhile are independent of their files afterwards, if those are in `places`.

    These are folders, and single files. `warn` is called with a sentence where that is not possible.
    """
    loaded = LoadedLibraries(places)
    yield
    loaded.keep(warn)


class LoadedLibraries:
    """The libraries in `places` that are loaded from now on until `keep`."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [os.path.realpath(each) for each in places]
        self._before = self._mapped().keys()

    def keep(self, warn: Callable[[str], None]) -> None:
        """Make them independent of their files. Blocks. See `private_libraries`."""
        with _lock:
            for path, parts in self._mapped().items():
                if path in self._before or not any("x" in part.flags for part in parts):
                    continue
                size = sum(part.size for part in parts)
                if size > LIBRARY_BYTES_MAX:
                    warn(
                        f"'{path}' has {size} bytes, which is more than {LIBRARY_BYTES_MAX}, and stays mapped from its "
                        "file: do not write to it while a model uses it; put another file in its place"
                    )
                    continue
                try:
                    replace(path, parts)
                except OSError as exc:
                    warn(
                        f"'{path}' stays mapped from its file, because it cannot be copied: {exc.strerror}. Do not "
                        "write to it while a model uses it; put another file in its place"
                    )

    def _mapped(self) -> Dict[str, List[Mapping]]:
        """The mappings of each file in the places, but for those that are written to, and those that nobody reads."""
        found: Dict[str, List[Mapping]] = {}
        for each in mappings():
            if each.flags[0] == "r" and each.flags[3] == "p" and is_in(each.path, self._places):
                found.setdefault(each.path, []).append(each)
        return found
