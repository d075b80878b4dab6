# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses of coroutines that wait in the stub until their clients have room for them. (pure)

A thread that sends to a client without room waits. A coroutine must not: all others of its event loop would wait with
it, and so would all other clients of the instance. So its response is kept here, in the region of responses, and sent
when the client has taken others.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional

from pyruntime.utils.messages import WireResponse

# The responses of one request that are kept, and their bytes. A client that takes nothing for half a minute is cut off
# by the server; a model that makes more than this meanwhile does not look at what it sends, nor awaits room.
RESPONSES_KEPT_MAX = 16_000
BYTES_KEPT_MAX = 256 << 20


class Kept(NamedTuple):
    """One response, or only the end of its request; `size` are the bytes of its tensors."""

    response: Optional[WireResponse]
    size: int
    final: bool


class Backlog:
    """See the module. By the serial of a request, which is here from its first response that is kept until `remove`.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._streams: Dict[int, Deque[Kept]] = {}
        self._bytes: Dict[int, int] = {}

    def __contains__(self, serial: int) -> bool:
        return serial in self._streams

    def is_full(self, serial: int) -> bool:
        """Whether no further response of a request may be kept."""
        kept = self._streams.get(serial)
        return kept is not None and (len(kept) >= RESPONSES_KEPT_MAX or self._bytes[serial] >= BYTES_KEPT_MAX)

    def add(self, serial: int, kept: Kept) -> None:
        """Keep what a request is sent after all that it is sent before."""
        self._streams.setdefault(serial, deque()).append(kept)
        self._bytes[serial] = self._bytes.get(serial, 0) + kept.size

    def first(self, serial: int) -> Optional[Kept]:
        """What is to be sent next; None if there is nothing."""
        kept = self._streams.get(serial)
        return kept[0] if kept else None

    def take(self, serial: int) -> Kept:
        """Remove what `first` has returned."""
        kept = self._streams[serial].popleft()
        self._bytes[serial] -= kept.size
        return kept

    def remove(self, serial: int) -> List[Kept]:
        """Forget a request. Returns what was not sent."""
        self._bytes.pop(serial, None)
        return list(self._streams.pop(serial, ()))
