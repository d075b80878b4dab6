# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of what no endpoint takes: its answer is known from its head, and its body is thrown away."""

from __future__ import annotations

from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_error


class RefusedExchange(Exchange):
    """See the module."""

    def check_head(self) -> bool:
        """See Exchange."""
        return False

    def take(self, data: bytes) -> None:
        """See Exchange."""
        self._connection.discarded(len(data))

    def finish(self, body: bytes) -> None:
        """See Exchange. The size of the body, and how it is compressed, are no matter."""
        self._counted = True
        self._state.in_flight += 1
        self._act()

    def _act(self) -> None:
        route = self.head.route
        self._respond(route.status, encode_error(route.error) if route.error else b"")
