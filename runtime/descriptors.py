# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The descriptors of this process: how many it may have, and how many are open."""

from __future__ import annotations

import os
import resource
from contextlib import suppress


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one. Returns the soft limit from before.

    Programs that the server starts get that one, because some take long, or fail, under a high one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # refused by a sandbox; the limit is as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft


def limit() -> int | None:
    """How many descriptors this process may have; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def open_count() -> int:
    """How many descriptors are open."""
    # Since Linux 6.2 the folder's size is their number; before, it is 0.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
