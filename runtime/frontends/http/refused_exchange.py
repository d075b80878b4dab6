# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of what no endpoint takes: its answer is known from its head, and its body is thrown away."""

from __future__ import annotations

from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_error


class RefusedExchange(Exchange):
    """See the module."""

    @property
    def refused(self) -> bool:
        """See Exchange."""
        return True

    def take(self, data: bytes) -> None:
        """See Exchange."""
        self._connection.discarded(len(data))

    def finish(self, body: bytes) -> None:
        """See Exchange."""
        self._count()
        self._act()

    def _act(self) -> None:
        route = self.head.route
        self._respond(route.status, encode_error(route.error) if route.error else b"")
