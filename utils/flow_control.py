# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits how far a model may be ahead of the client of a request. (pure)

A model can send responses faster than its client receives them, and each response uses memory. So a request has a
window: a limit for the number and the bytes of responses that the client has not received yet. A model that sends more
waits. The limits are equal for all models. Stubs count here; native code receives the limits from
`_triton.set_response_window`.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict

# The window of one request. The waiting thread may serve other requests too, so a stream of small responses, such as
# words, waits only for a client that has not read for many seconds. Less than the limit at which generate_stream
# disconnects a client.
RESPONSES_AHEAD_MAX = 1000
# The window of one request. The last response may exceed it, with any size.
BYTES_AHEAD_MAX = 64 << 20


class FlowControl:
    """The windows of all requests with senders, by serial. Not thread-safe."""

    def __init__(self) -> None:
        self._sizes: Dict[int, Deque[int]] = {}
        self._bytes: Dict[int, int] = {}

    def may_send(self, serial: int) -> bool:
        """Whether another response may be sent. If the client has received all, one of any size may be sent."""
        sizes = self._sizes.get(serial)
        return not sizes or (len(sizes) < RESPONSES_AHEAD_MAX and self._bytes.get(serial, 0) < BYTES_AHEAD_MAX)

    def sent(self, serial: int, size: int) -> None:
        """Count a response of `size` bytes as sent."""
        self._sizes.setdefault(serial, deque()).append(size)
        self._bytes[serial] = self._bytes.get(serial, 0) + size

    def credit(self, serial: int, count: int) -> None:
        """The client has received the next `count` responses. Ignores unknown serials: those requests have ended."""
        sizes = self._sizes.get(serial)
        while sizes and count:
            self._bytes[serial] -= sizes.popleft()
            count -= 1

    def end(self, serial: int) -> None:
        """Forget a request: no other response follows."""
        self._sizes.pop(serial, None)
        self._bytes.pop(serial, None)
