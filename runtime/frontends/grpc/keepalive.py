# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides when to ping, to shut down or to cut a connection, by its silence, its age and its own pings. (pure)

The rules are gRPC's, under the names of Triton's options (--grpc-keepalive-*, --grpc-http2-*, --grpc-max-connection-*).
Times are in seconds, on any clock that never goes back.
"""

from __future__ import annotations

import math
from enum import Enum, auto

from pyruntime.runtime.settings import ServerSettings

# How long a client may take to complete the handshake of HTTP/2.
HANDSHAKE_S_MAX = 20.0
# A client that reads nothing for this long while responses wait for it is cut off, because these occupy memory. One
# that opens no window, and says nothing else, is pinged after it. Kernels and clients say late that something was read:
# for one that reads 500 bytes a second each two minutes.
STALLED_S_MAX = 150.0
# The shortest interval of pings by a client without calls, unless the settings permit more: as in gRPC.
IDLE_PING_S_MIN = 7200.0
# Maximum ages differ by up to this share, as in gRPC, so that connections that began together do not end together.
_AGE_JITTER = 0.1


class Action(Enum):
    """The action that is due for a connection."""

    NOTHING = auto()
    PING = auto()
    SHUT_DOWN = auto()
    CUT = auto()


class Keepalive:
    """The state of one connection. `jitter` is a random number between -1 and 1."""

    def __init__(self, settings: ServerSettings, now: float, jitter: float) -> None:
        self._ping_after = settings.grpc_keepalive_time_ms / 1000
        self._ping_timeout = settings.grpc_keepalive_timeout_ms / 1000
        self._ping_idle = settings.grpc_keepalive_permit_without_calls
        self._pings_max = settings.grpc_max_pings_without_data
        self._pings_sent = 0
        self._interval_min = settings.grpc_min_ping_interval_ms / 1000
        self._strikes_max = settings.grpc_max_ping_strikes
        self._strikes = 0
        self._client_pinged = -math.inf
        self._heard = now
        self._pinged: float | None = None
        age = settings.grpc_max_connection_age_ms / 1000
        self._old = now + age * (1 + _AGE_JITTER * jitter) if age else math.inf
        # Counts from the time when the client is told; 0 means no limit.
        self._grace = settings.grpc_max_connection_age_grace_ms / 1000
        self._too_old = math.inf
        self._shut_down = False
        self._opened = now
        self._stalled_since: float | None = None

    def received(self, now: float) -> None:
        """Bytes have arrived from the client."""
        self._heard = now
        self._pinged = None

    def said(self) -> None:
        """Part of a call is sent: this resets the counts of pings, the server's and the client's."""
        self._pings_sent = 0
        self._strikes = 0
        self._client_pinged = -math.inf

    def client_pinged(self, now: float, has_calls: bool) -> bool:
        """The client pings. Returns True if it pings too often: the answer is ENHANCE_YOUR_CALM then."""
        interval = self._interval_min if has_calls or self._ping_idle else IDLE_PING_S_MIN
        too_soon = now - self._client_pinged < interval
        self._client_pinged = now
        if not too_soon:
            return False
        self._strikes += 1
        return self._strikes_max > 0 and self._strikes > self._strikes_max

    def due(self, now: float, *, begun: bool, has_calls: bool, blocked: bool, waits: bool) -> Action:
        """The action that is due now.

        `begun`: the client has completed the handshake of HTTP/2. `blocked`: responses wait for the client to take what
        was sent before. `waits`: they wait for its windows, which a client that is gone would never open.
        """
        if not begun and now - self._opened >= HANDSHAKE_S_MAX:
            return Action.CUT
        if self._stalled(now, blocked) or now >= self._too_old:
            return Action.CUT
        if now >= self._old and not self._shut_down:
            self._shut_down = True
            self._too_old = now + self._grace if self._grace else math.inf
            return Action.SHUT_DOWN
        if self._pinged is not None:
            return Action.CUT if now - self._pinged >= self._ping_timeout else Action.NOTHING
        silence = min(self._ping_after, STALLED_S_MAX) if waits else self._ping_after
        if now - self._heard < silence or not (has_calls or self._ping_idle):
            return Action.NOTHING
        if self._pings_max and self._pings_sent >= self._pings_max and not has_calls:
            return Action.NOTHING
        self._pings_sent += 1
        self._pinged = now
        return Action.PING

    def _stalled(self, now: float, blocked: bool) -> bool:
        if not blocked:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        return self._stalled_since is not None and now - self._stalled_since >= STALLED_S_MAX

    def took(self) -> None:
        """The client has read some of the bytes that waited for it."""
        self._stalled_since = None
