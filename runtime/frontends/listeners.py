# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The ports that the server answers at, HTTP and metrics, and the connections of both."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from functools import partial
from typing import NamedTuple

from pyruntime.runtime.core import Core
from pyruntime.runtime.frontends.http import HttpConnection, MetricsConnection
from pyruntime.runtime.settings import ServerSettings, SettingsError

_LOG = logging.getLogger("pyruntime.server")

# Connections that the kernel holds for us while we are busy: a burst of clients, no more.
BACKLOG = 1024
# Listeners that share one socket. Each accepts one connection whenever the event loop looks at the network, and the
# loop looks the more seldom the more there is to do: with one listener new clients wait for seconds behind those that
# are connected, and the backlog fills.
LISTENERS = 16


class _Service(NamedTuple):
    """What is served at a port: `title` as Triton's log has it."""

    name: str
    title: str
    address: str
    port: int
    reuse_port: bool
    connection: type[HttpConnection]

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


class Listeners:
    """See the module. Opened before any model is loaded, closed when the last request is answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._services = _services(core.settings)
        self._listeners: list[asyncio.Server] = []
        self._connections: set[HttpConnection] = set()

    async def open(self) -> None:
        """Listen at all ports. Raises SettingsError, with none of them open, where one cannot be had."""
        loop = asyncio.get_running_loop()
        for service in self._services:
            connect = partial(service.connection, self._core, self._connections)
            try:
                listener = await loop.create_server(
                    connect, service.address, service.port, backlog=BACKLOG, reuse_port=service.reuse_port
                )
            except OSError as exc:
                self.close()
                raise SettingsError(f"{service.name} cannot be served at {service}: {exc.strerror or exc}") from exc
            self._listeners.append(listener)
            for sock in listener.sockets:
                for _ in range(LISTENERS - 1):
                    again = socket.socket(fileno=os.dup(sock.fileno()))
                    self._listeners.append(await loop.create_server(connect, sock=again, backlog=BACKLOG))

    def log_started(self) -> None:
        """Say in the log what is served where."""
        for service in self._services:
            _LOG.info("Started %s at %s", service.title, service)

    def close(self) -> None:
        """Take no more connections, and close each once it has its answers."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.close_idle()

    def abort(self) -> None:
        """Cut the connections that are left."""
        for connection in list(self._connections):
            connection.abort()


def _services(settings: ServerSettings) -> list[_Service]:
    services = []
    if settings.allow_http:
        reuse = settings.reuse_http_port
        address, port = settings.http_address, settings.http_port
        services.append(_Service("HTTP", "HTTPService", address, port, reuse, HttpConnection))
    if settings.allow_metrics:
        address = settings.http_address if settings.metrics_address is None else settings.metrics_address
        port = settings.metrics_port
        services.append(_Service("Metrics", "Metrics Service", address, port, False, MetricsConnection))
    return services
