# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a connection whose client still sends the body of a refused request. (pure)

Many clients read the answer only after they have sent everything, and a connection that is closed while bytes are
unread is reset, which takes the answer away from its client. So what comes is read and discarded, for a while.
"""

from __future__ import annotations

# The rest of a refused body up to which a connection is kept: it is read before the answer. A request with more of it
# is answered at once, and is the last one of its connection.
DISCARDED_BYTES_MAX = 256 << 20
# A connection is cut when so many bytes came behind the answer: no body is longer, but of models of many gigabytes.
LINGER_BYTES_MAX = 16 << 30
# It is cut, too, so many seconds after the answer, or when nothing came for so many.
LINGER_S_MAX = 120.0
LINGER_SILENT_S_MAX = 10.0


class Lingering:
    """What came behind the answer. Times are in seconds, of any clock."""

    __slots__ = ("_heard", "_seen", "_since", "_taken")

    def __init__(self) -> None:
        self._taken = self._seen = 0
        self._since: float | None = None
        self._heard = 0.0

    def __repr__(self) -> str:
        return f"<Lingering [{self._taken}]>"

    def take(self, nbytes: int) -> bool:
        """Count discarded bytes. Returns False if they are too many."""
        self._taken += nbytes
        return self._taken <= LINGER_BYTES_MAX

    def is_over(self, now: float) -> bool:
        """Whether the client had enough time. Called every few seconds; the time begins with the first call."""
        if self._since is None:
            self._since = self._heard = now
        if self._taken != self._seen:
            self._seen, self._heard = self._taken, now
        return now - self._since >= LINGER_S_MAX or now - self._heard >= LINGER_SILENT_S_MAX
