# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A mapped region of shared memory.

The host creates regions (see runtime/memory) and hands their file descriptors to stubs; either side maps them with this
class. A region is sparse: its size is a bound on addresses, and memory is used only for what was committed. Committing
goes through posix_fallocate, because a store into a page that /dev/shm has no room for is a bus error, and that must
be an error message instead.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

from pyruntime.utils.arena import Backing
from pyruntime.utils.errors import OutOfMemoryError

# Addresses, not memory: more than a machine of today has, and a thousand of them fit into an address space.
REGION_BYTES_MAX = 64 << 30

_MADV_REMOVE = getattr(mmap, "MADV_REMOVE", 9)
_MADV_DONTDUMP = getattr(mmap, "MADV_DONTDUMP", 16)


# The last page of every region belongs to the host, whoever allocates in the rest. In a response region it has a byte
# for each request that is with the stub, at its serial modulo this: not 0 once nobody waits for it any longer.
FLAGS_BYTES = 4096


class Region(Backing):
    """Owns a mapping and the descriptor under it. Both processes that share it map it read-write.

    `limit` is where the host's flags begin, and what is allocated ends.
    """

    def __init__(self, fd: int) -> None:
        """Map the region behind `fd`, which belongs to the region from now on."""
        self._fd = fd
        size = os.fstat(fd).st_size
        self.limit = size - FLAGS_BYTES
        self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.map.madvise(_MADV_DONTDUMP)  # a core dump of a crashed stub is not the place for clients' tensors
        self.view = memoryview(self.map)

    def fileno(self) -> int:
        """The descriptor, for handing to another process."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """A copy of `size` bytes."""
        return self.map[offset : offset + size]

    def flag(self, serial: int) -> int:
        """The flag of a request: see FLAGS_BYTES. Its page must have been committed."""
        return self.map[self.limit + serial % FLAGS_BYTES]

    def set_flag(self, serial: int, value: int) -> None:
        """Set the flag of a request. The host's to do."""
        self.map[self.limit + serial % FLAGS_BYTES] = value

    def commit(self, offset: int, size: int) -> None:
        """See Backing.commit."""
        try:
            os.posix_fallocate(self._fd, offset, size)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise OutOfMemoryError(f"no shared memory left for {size} bytes: /dev/shm is full") from exc

    def decommit(self, offset: int, size: int) -> None:
        """See Backing.decommit."""
        if self._fd >= 0:  # the pages of a closed region go with its last view
            self.map.madvise(_MADV_REMOVE, offset, size)

    def close(self) -> None:
        """Unmap if nobody looks into the memory any more; otherwise the last view's end unmaps it."""
        os.close(self._fd)
        self._fd = -1  # the number may be another region's soon
        self.view.release()
        # If a response is still being written from here, the mapping goes with its last view.
        with contextlib.suppress(BufferError):
            self.map.close()
        del self.map
