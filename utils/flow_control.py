# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How far a model may be ahead of the client of a request. (pure)

A model can make responses faster than its client takes them, and each of them is memory. So a request has a window: so
many responses, or so many bytes of them, that the client has not taken yet. A model that sends more has to wait. The
limits are the same for all models. Stubs count here; native code is given them (`_triton.set_response_window`).
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict

# Of one request. The thread that waits may serve other requests, too, so a stream of small responses, such as words, is
# held up only by a client that looks away for many seconds. Fewer than what a client of generate_stream may let wait
# before it is cut off.
RESPONSES_AHEAD_MAX = 1000
# Of one request. The last response may go beyond it, however large it is.
BYTES_AHEAD_MAX = 64 << 20


class Windows:
    """The windows of all requests that senders answer, by serial. The caller sees to it that one thread is in here."""

    def __init__(self) -> None:
        self._sizes: Dict[int, Deque[int]] = {}
        self._bytes: Dict[int, int] = {}

    def is_open(self, serial: int) -> bool:
        """Whether another response may be sent. One may be, however large, when none is ahead."""
        sizes = self._sizes.get(serial)
        return not sizes or (len(sizes) < RESPONSES_AHEAD_MAX and self._bytes.get(serial, 0) < BYTES_AHEAD_MAX)

    def sent(self, serial: int, size: int) -> None:
        """A response of `size` bytes is on its way."""
        self._sizes.setdefault(serial, deque()).append(size)
        self._bytes[serial] = self._bytes.get(serial, 0) + size

    def taken(self, serial: int, count: int) -> None:
        """The client has taken the first `count` of those ahead. Unknown serials are those that have ended."""
        sizes = self._sizes.get(serial)
        while sizes and count:
            self._bytes[serial] -= sizes.popleft()
            count -= 1

    def end(self, serial: int) -> None:
        """No other response follows."""
        self._sizes.pop(serial, None)
        self._bytes.pop(serial, None)
