# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Assigns the places beyond the limit of connections, which are for questions about health. (pure)

A place belongs to who asks. If all are taken, a new connection gets that of a silent one, so that clients which connect
and say nothing, or half of something, keep no probe out. It is taken from the peer that has most places, and of its
connections from the one that has been silent for longest: a prober that is slow to ask loses its place to other probers
only, however fast others connect. No time is needed for that: a silent connection harms nobody while there are places.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Protocol

# At the limit of connections there may be so many more, for a question about health each.
HEALTH_CONNECTIONS_MAX = 24
# So many of them may be of one peer. The rest is for others, also while questions of that peer wait for their answers.
PEER_CONNECTIONS_MAX = 16
# What a client is told for which there is no place, or that asks about something else.
TOO_MANY = "the server has as many connections as it can serve"
# The network of IPv6 of which one site may use any address.
_SITE_BITS = 64


class SilentConnection(Protocol):
    """A connection beyond the limit, which may ask about health once."""

    @property
    def is_silent(self) -> bool:
        """Whether it has not asked: there is no whole request, and nothing that is unread."""

    def give_way(self) -> None:
        """Tell the client that there is no place, if the protocol can say so, and close the connection."""


class HealthPlaces:
    """See the module."""

    def __init__(self) -> None:
        # The connections, the oldest first, and the peer of each.
        self._held: dict[SilentConnection, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, connection: SilentConnection, peer: str) -> bool:
        """Give `connection` of `peer` a place. Returns False if all that it may have are about to be answered."""
        counts = Counter(self._held.values())
        silent: SilentConnection | None = None
        if peer and counts[peer] >= PEER_CONNECTIONS_MAX:
            silent = self._oldest_silent([peer])
        elif len(self._held) >= HEALTH_CONNECTIONS_MAX:
            # Never from a peer that has fewer: of those with more, all may just have sent something.
            silent = self._oldest_silent([each for each, count in counts.most_common() if count >= counts[peer]])
        else:
            self._held[connection] = peer
            return True
        if silent is None:
            return False
        self.leave(silent)
        silent.give_way()
        self._held[connection] = peer
        return True

    def leave(self, connection: SilentConnection) -> None:
        """The connection is closed. Has no effect on one that has given way."""
        self._held.pop(connection, None)

    def _oldest_silent(self, peers: list[str]) -> SilentConnection | None:
        """The oldest silent connection of the first of `peers` that has one.

        Of peers with equally many connections, the one with the oldest connection comes first.
        """
        for peer in peers:
            for each, of in self._held.items():
                if of == peer and each.is_silent:
                    return each
        return None


def peer_of(address: object) -> str:
    """The peer at an address of a socket, "" for a client of a UNIX socket: an address of IPv4, or a site of IPv6."""
    if not isinstance(address, tuple) or not address:
        return ""
    found = ip_address(address[0])
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(IPv6Network((int(found), _SITE_BITS), strict=False).network_address)
    return str(found)
