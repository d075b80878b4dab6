# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections beyond the limit that ask about the server's health.

Each may ask once. So nobody restarts a server because it has many clients. Who has a place is decided by HealthPlaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyruntime.runtime.frontends.common.health_places import TOO_MANY
from pyruntime.runtime.frontends.http.kserve_response import encode_error
from pyruntime.runtime.frontends.http.request_head import BadRequest, Head
from pyruntime.runtime.frontends.http.response_head import head as response_head
from pyruntime.runtime.frontends.http.routes import Endpoint

HEALTH = (Endpoint.SERVER_LIVE, Endpoint.SERVER_READY)

_NO_PLACE = encode_error(TOO_MANY)
# What a connection is told for which there is no place.
NO_PLACE = response_head(503, len(_NO_PLACE), keep_alive=False) + _NO_PLACE


def refuse_place(transport: asyncio.BaseTransport) -> None:
    """Tell a client that there is no place for its connection, and close that."""
    if not transport.is_closing():
        transport.write(NO_PLACE)  # type: ignore[attr-defined]  # what a server's connections have
        transport.close()


def only_health(read_head: Callable[[bytes], Head]) -> Callable[[bytes], Head]:
    """`read_head` for one of these connections: it raises BadRequest for other endpoints, and ends the connection."""

    def read_health(data: bytes) -> Head:
        head = read_head(data)
        if head.route.endpoint not in HEALTH:
            raise BadRequest(TOO_MANY, 503)
        return head._replace(keep_alive=False, asks_to_stay=False)

    return read_health
