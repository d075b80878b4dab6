# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Limits how long HTTP clients may keep a connection waiting. (pure)

Every connection is checked every few seconds, so that a request needs no timer. Hence a client may exceed a limit by up
to one such interval. When connections become scarce, idle ones have less time.
"""

from __future__ import annotations

from enum import Enum, auto

# How often connections are checked, in seconds.
CHECK_S = 5.0

# Between requests. Clients and load balancers keep connections for up to an hour or so, and a server that closes an
# idle one before they do makes requests fail that are on their way. So this limit is for clients that vanished.
IDLE_S_MAX = 7200.0
# From the first byte of a head to its last. nginx allows 60 s.
HEAD_S_MAX = 60.0
# The same two limits when connections become scarce.
CROWDED_IDLE_S_MAX = 15.0
CROWDED_HEAD_S_MAX = 15.0
# The longest pause within a body.
BODY_STALLED_S_MAX = 30.0
# After the grace period a body must have arrived at this average rate at least.
BODY_GRACE_S = 60.0
BODY_BYTES_PER_S_MIN = 16 << 10


class Phase(Enum):
    """The next step that a connection waits for: the server, a request, the rest of a head, or the rest of a body."""

    SERVER = auto()
    REQUEST = auto()
    HEAD = auto()
    BODY = auto()


class ClientTimeouts:
    """The timeouts of one client. Times are in seconds, of any clock."""

    __slots__ = ("_first", "_last", "_moved", "_phase", "_since")

    def __init__(self) -> None:
        self._phase = Phase.SERVER
        self._since = self._moved = 0.0
        self._first = self._last = 0

    def __repr__(self) -> str:
        return f"<ClientTimeouts {self._phase.name}>"

    def are_exceeded(self, now: float, phase: Phase, *, anew: bool, taken: int, crowded: bool) -> bool:
        """Whether the client has taken too long. `anew`: a request has begun since the last check.

        `taken` grows by the bytes of the body that come in; its first value has no meaning.
        """
        if anew or phase is not self._phase:
            self._phase = phase
            self._since = self._moved = now
            self._first = self._last = taken
            return False
        waited = now - self._since
        if phase is Phase.BODY:
            if taken != self._last:
                self._last, self._moved = taken, now
            expected = (waited - BODY_GRACE_S) * BODY_BYTES_PER_S_MIN
            return now - self._moved >= BODY_STALLED_S_MAX or taken - self._first < expected
        if phase is Phase.HEAD:
            return waited >= (CROWDED_HEAD_S_MAX if crowded else HEAD_S_MAX)
        return phase is Phase.REQUEST and waited >= (CROWDED_IDLE_S_MAX if crowded else IDLE_S_MAX)
