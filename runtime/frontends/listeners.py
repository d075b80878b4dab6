# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Opens the ports of the server, HTTP, gRPC and metrics, and keeps their connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypedDict

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common import unix_sockets
from pyruntime.runtime.frontends.common.connection_limits import ConnectionChecks
from pyruntime.runtime.frontends.common.origins import Origins
from pyruntime.runtime.frontends.common.tls import server_context
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.metrics_connection import MetricsConnection
from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.settings import UNIX_PREFIX, ServerSettings, SettingsError

_LOG = logging.getLogger("pyruntime.server")

# Connections that the kernel queues while the event loop is busy: enough for a burst of clients.
BACKLOG = 1024
# Listeners that share one socket. Each accepts one connection per iteration of the event loop, and iterations take
# longer under load. With one listener new clients would wait for seconds, and the backlog would fill.
LISTENERS = 16
# Limits of the TLS handshake and shutdown, in seconds: a slower client is cut off.
HANDSHAKE_S_MAX = 20.0
TLS_SHUTDOWN_S_MAX = 5.0
# How long clients may take to receive their last responses from a server that exits, in seconds.
LAST_WORDS_S_MAX = 2.0


# Logged where the extension for gRPC, or the library that it stands on, is missing.
NO_GRPC = (
    "gRPC is not served: libnghttp2 cannot be loaded (%s); install it (Debian and Ubuntu: apt-get install "
    "libnghttp2-14), or a wheel of pyruntime, which carries it"
)
# How Python names that extension where it does not find it, and where it cannot load it.
_HTTP2 = ("pyruntime.runtime.native._http2", "_http2")


# Addresses of all interfaces, to which clients cannot connect.
_ANY_ADDRESS = ("0.0.0.0", "::", "")


class Connection(Protocol):
    """One client."""

    def shut_down(self) -> None:
        """Tell the client that the server is about to stop, if the protocol can say so."""

    @property
    def is_idle(self) -> bool:
        """Whether no request has begun for a while, and none is in flight."""

    def close_idle(self) -> None:
        """Close the connection once its requests in flight are answered."""

    def abort(self) -> None:
        """Cut the connection."""


class _Service(NamedTuple):
    """The service at a port. `title` is its name in Triton's log."""

    name: str
    title: str
    address: str
    port: int
    reuse_port: bool
    connection: Callable[..., asyncio.BaseProtocol]
    # Its arguments besides the server's state and all connections.
    arguments: tuple[object, ...] = ()
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return self.address if self.is_unix else f"{self.address}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether it is served at a UNIX socket, which has no port."""
        return self.address.startswith(UNIX_PREFIX)

    @property
    def url(self) -> str:
        """The address for a browser on this machine."""
        host = "localhost" if self.address in _ANY_ADDRESS else self.address
        return f"{'http' if self.tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{self.port}/"


class _Tls(TypedDict, total=False):
    """How `create_server` serves over TLS. `ssl` is None for a port without TLS."""

    ssl: ssl.SSLContext | None
    ssl_handshake_timeout: float
    ssl_shutdown_timeout: float


class _Connections(set[Connection]):
    """All open connections."""

    _gone: asyncio.Event | None = None

    def discard(self, connection: object) -> None:
        super().discard(connection)
        if self._gone is not None and not self:
            self._gone.set()

    async def wait_gone(self) -> None:
        """Wait until all connections are closed. Safe to cancel."""
        if self:
            self._gone = asyncio.Event()
            await self._gone.wait()


class Listeners:
    """See the module. Opened before any model is loaded, closed when the last request is answered."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._services: list[_Service] = []
        self._listeners: list[asyncio.Server] = []
        self._unix_sockets: list[unix_sockets.UnixSocket] = []
        self._connections = _Connections()
        self._checks = ConnectionChecks(self._connections, HttpConnection, state.pending_bytes)

    async def open(self) -> None:
        """Listen at all ports, and log them. If one cannot be opened, close all and raise SettingsError."""
        self._services = _services(self._state.settings)
        loop = asyncio.get_running_loop()
        for service in self._services:
            connect = partial(service.connection, self._state, self._connections, *service.arguments)
            tls: _Tls = {"ssl": service.tls}
            if service.tls is not None:
                tls |= {"ssl_handshake_timeout": HANDSHAKE_S_MAX, "ssl_shutdown_timeout": TLS_SHUTDOWN_S_MAX}
            try:
                if service.is_unix:
                    bound = unix_sockets.bind(service.address)
                    self._unix_sockets.append(bound)
                    listener = await loop.create_unix_server(connect, sock=bound.sock, backlog=BACKLOG, **tls)
                else:
                    listener = await loop.create_server(
                        connect, service.address, service.port, backlog=BACKLOG, reuse_port=service.reuse_port, **tls
                    )
            except (OSError, SettingsError) as exc:
                self.close()
                reason = (exc.strerror if isinstance(exc, OSError) else None) or exc
                is_taken = isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE and not service.is_unix
                hint = f"; choose another port with --{service.name.lower()}-port" if is_taken else ""
                raise SettingsError(f"{service.name} cannot be served at {service}: {reason}{hint}") from exc
            self._listeners.append(listener)
            create = loop.create_unix_server if service.is_unix else loop.create_server
            for sock in listener.sockets:
                for _ in range(LISTENERS - 1):
                    again = socket.socket(fileno=os.dup(sock.fileno()))
                    self._listeners.append(await create(connect, sock=again, backlog=BACKLOG, **tls))
        self._checks.begin()
        for service in self._services:
            _LOG.info("Started %s at %s", service.title, service)

    def log_loaded(self) -> None:
        """Log where models can be tried, now that they are loaded."""
        for service in self._services:
            if service.connection is HttpConnection and not service.is_unix:
                _LOG.info("Models can be tried in a browser at %s", service.url)

    def connections(self) -> dict[str, int]:
        """The number of open connections, by protocol."""
        counts: Counter[object] = Counter(map(type, self._connections))
        return {service.name.lower(): counts[service.connection] for service in self._services}

    def shut_down(self) -> None:
        """Tell clients that the server is about to stop. Requests in flight are answered."""
        for connection in list(self._connections):
            connection.shut_down()

    def close(self) -> None:
        """Accept no more connections, and close each one once its requests are answered."""
        for listener in self._listeners:
            listener.close()
        for bound in self._unix_sockets:
            bound.remove()
        for connection in list(self._connections):
            connection.close_idle()

    async def finish(self) -> None:
        """After `close`: let clients receive their responses for LAST_WORDS_S_MAX at most, then cut the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S_MAX):
                await self._connections.wait_gone()
        self.abort()

    def abort(self) -> None:
        """Cut the remaining connections."""
        self._checks.end()
        for connection in list(self._connections):
            connection.abort()


def _services(settings: ServerSettings) -> list[_Service]:
    services = []
    if settings.allow_http:
        reuse = settings.reuse_http_port
        address, port = settings.http_address, settings.http_port
        public = frozenset(origin.lower().encode() for origin in settings.http_public_origins)
        origins = Origins(b"http" if settings.http_tls is None else b"https", public)
        reader = HeadReader(settings.http_restricted_apis, settings.http_header_forward_pattern, origins)
        tls = None if settings.http_tls is None else server_context(settings.http_tls, ["http/1.1"])
        services.append(_Service("HTTP", "HTTPService", address, port, reuse, HttpConnection, (reader.read,), tls))
    if settings.allow_grpc:
        services += _grpc(settings)
    if settings.allow_metrics:
        address, port = settings.metrics_host, settings.metrics_port
        services.append(_Service("Metrics", "Metrics Service", address, port, False, MetricsConnection))
    return services


def _grpc(settings: ServerSettings) -> list[_Service]:
    try:
        from pyruntime.runtime.frontends.grpc.connection import GrpcConnection
        from pyruntime.runtime.frontends.grpc.head import HeadReader as CallHeadReader
    except ImportError as exc:
        if exc.name not in _HTTP2:
            raise
        _LOG.warning(NO_GRPC, exc)
        return []
    address, port, reuse = settings.grpc_address, settings.grpc_port, settings.reuse_grpc_port
    reader = CallHeadReader(settings.grpc_header_forward_pattern)
    tls = None if settings.grpc_tls is None else server_context(settings.grpc_tls, ["h2"])
    return [_Service("gRPC", "GRPCInferenceService", address, port, reuse, GrpcConnection, (reader.read,), tls)]
