# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A mapped region of shared memory.

The host creates regions (see runtime/regions.py) and passes their file descriptors to stubs; both sides map them with
this class. A region is sparse: its size limits only addresses, and only committed parts use memory. Committing reads
how much memory is left before it calls posix_fallocate, so that a lack of memory is an exception.

A model may do anything to the descriptor of a region. Its size is sealed: an access behind the end of a file is a bus
error, which would end the host. The model can free pages, and they read as zeros then.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sys

from pyruntime.utils.arena import Backing
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.memory_left import check_memory_left

# Addresses, not memory: more than the memory of most machines, and a thousand regions fit into an address space.
REGION_BYTES_MAX = 64 << 30

# EPERM: the region is immutable, an attribute that a privileged model can set.
_REFUSED = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EPERM)
_MADV_REMOVE = getattr(mmap, "MADV_REMOVE", 9)
_MADV_DONTDUMP = getattr(mmap, "MADV_DONTDUMP", 16)
# Before Python 3.13 each mapping keeps a descriptor of its own, which nothing here needs.
_UNTRACKED = {"trackfd": False} if sys.version_info >= (3, 13) else {}


# The last page of every region belongs to the host, even if another process allocates in the rest. In a response
# region it has a flag for each request at the stub, at its serial modulo this size: not 0 if the request is cancelled.
FLAGS_BYTES = 4096


class Region(Backing):
    """Owns a mapping and the descriptor under it. Both processes that share it map it read-write.

    `limit` is the end of the memory for slots; the host's flags follow.
    """

    def __init__(self, fd: int) -> None:
        """Map the region of `fd`, and take over the descriptor."""
        self._fd = fd
        size = os.fstat(fd).st_size
        self.limit = size - FLAGS_BYTES
        self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, **_UNTRACKED)
        self.map.madvise(_MADV_DONTDUMP)  # keeps clients' tensors out of core dumps
        self.view = memoryview(self.map)

    def fileno(self) -> int:
        """The descriptor, to pass it to another process."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes."""
        return self.map[offset : offset + size]

    def flag(self, serial: int) -> int:
        """The flag of a request: see FLAGS_BYTES. Its page must be committed."""
        return self.map[self.limit + serial % FLAGS_BYTES]

    def set_flag(self, serial: int, value: int) -> None:
        """Set the flag of a request. Only the host may do this."""
        self.map[self.limit + serial % FLAGS_BYTES] = value

    def check(self, size: int) -> None:
        """See Backing.check."""
        check_memory_left(size)

    def commit(self, offset: int, size: int) -> None:
        """See Backing.commit. Any thread may call it; others run meanwhile."""
        check_memory_left(size)
        try:
            os.posix_fallocate(self._fd, offset, size)
        except OSError as exc:
            if exc.errno not in _REFUSED:
                raise
            raise OutOfMemoryError(f"no shared memory left for {size} bytes: {exc.strerror}") from exc

    def decommit(self, offset: int, size: int) -> None:
        """See Backing.decommit."""
        if self._fd >= 0:  # the pages of a closed region are freed with its last view
            with contextlib.suppress(PermissionError):  # see _REFUSED; the pages stay
                self.map.madvise(_MADV_REMOVE, offset, size)

    def close(self) -> None:
        """Unmap the region; if there are views, the end of the last one unmaps it."""
        os.close(self._fd)
        self._fd = -1  # the number may soon be another file's
        self.view.release()
        # While a response is sent from this memory there are views, and the last one unmaps it.
        with contextlib.suppress(BufferError):
            self.map.close()
        del self.map
