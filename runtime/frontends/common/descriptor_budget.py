# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes how many connections the descriptors of the server allow. (pure)

Models, their stubs, logs and listeners hold descriptors, too, and more of them whenever a model is loaded. So the limit
follows what everything but connections holds, and leaves enough to start stubs and to load models.
"""

from __future__ import annotations

# Connections at a time. Each takes some 10 KiB here, and more in the kernel.
CONNECTIONS_MAX = 16384
# Connections leave this many descriptors free, or half of the free ones where there are few. A stub takes 12 while it
# starts, and 7 afterwards.
DESCRIPTORS_KEPT = 256
# Of few, connections leave so many in any case: for those that ask about health, and for those that are refused, of
# which a turn of the event loop accepts 16 and closes them after it. Without a descriptor a connection is reset,
# whoever asks.
DESCRIPTORS_KEPT_MIN = 48


def connections_max(limit: int | None, held: int) -> int:
    """How many connections there may be.

    `limit` is that of the descriptors of the process, None if there is none; `held` are those of everything else.
    """
    if limit is None:
        return CONNECTIONS_MAX
    free = max(0, limit - held)
    of_few = max(0, min(free // 2, free - DESCRIPTORS_KEPT_MIN))
    return min(CONNECTIONS_MAX, max(free - DESCRIPTORS_KEPT, of_few))
