# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The connections of the metrics port, some of which are always accepted."""

from __future__ import annotations

import asyncio

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.request_head import parse_metrics_head

# The port always accepts this many connections, so that metrics can be read when connections run out.
METRICS_CONNECTIONS_MAX = 16


class MetricsConnection(HttpConnection):
    """One client of the metrics port."""

    def __init__(self, state: ServerState, connections: set[object]) -> None:
        super().__init__(state, connections, parse_metrics_head)

    def _has_room(self) -> bool:
        of_metrics = sum(type(each) is MetricsConnection for each in self._connections)
        return of_metrics < METRICS_CONNECTIONS_MAX or super()._has_room()

    def _use_reserve(self, transport: asyncio.BaseTransport) -> bool:
        return False  # it is for HTTP
