# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Gives descriptors of ours high numbers, so that a model does not close them together with those that it inherits.

Code that becomes a daemon, or starts one, closes all low numbers: `os.closerange(3, 256)`. In Triton nothing depends on
them.
"""

import fcntl
import os
import resource

# Above what such code closes if it does not ask for the limit. Higher numbers make the kernel's table larger.
FIRST = 1024
# How far below the limit the numbers begin where it is lower.
BELOW_LIMIT = 64


def move_up(fd: int) -> int:
    """The number that takes the place of this one, which is closed. It is the same one where none higher is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = FIRST if limit == resource.RLIM_INFINITY else min(FIRST, limit - BELOW_LIMIT)
    if fd >= first:
        return fd
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first)
    except OSError:
        return fd
    os.close(fd)
    return moved
