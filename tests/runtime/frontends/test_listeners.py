# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine: which are opened, the error if one is taken, and that none stays open."""

import asyncio
import logging
import socket

import pytest
import uvloop

from pyruntime.runtime.frontends.common import connection_limits
from pyruntime.runtime.frontends.listeners import Listeners
from pyruntime.runtime.inference import pending_bytes
from pyruntime.runtime.settings import ServerSettings, SettingsError

from ..server_states import new_state

LIMIT_S = 60


@pytest.fixture
def ports(reserve_ports):
    """Free ports, for HTTP and for metrics."""
    with reserve_ports(2) as found:
        yield found


def listeners_of(ports, **settings):
    fields = {"http_address": "127.0.0.1", "http_port": ports[0], "metrics_port": ports[1], "allow_grpc": False}
    return Listeners(new_state(ServerSettings(("/models",), **{**fields, **settings})))


async def ask(port, target, host="127.0.0.1"):
    """The status of the response to a GET; None if the port is closed."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return None
    writer.write(b"GET %b HTTP/1.1\r\nConnection: close\r\n\r\n" % target)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


def run(coroutine):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(coroutine, LIMIT_S))


@pytest.mark.parametrize(
    ("settings", "http", "metrics"),
    [
        ({}, 200, 200),
        ({"allow_metrics": False}, 200, None),
        ({"allow_http": False}, None, 200),
        ({"metrics_address": "127.0.0.2"}, 200, None),
    ],
)
def test_what_is_served_where(ports, settings, http, metrics, caplog):
    """Each service at its own port, if it is allowed, and its start is logged in Triton's words."""

    async def check():
        listeners = listeners_of(ports, **settings)
        await listeners.open()
        listeners.log_loaded()
        assert await ask(ports[0], b"/v2") == http
        assert await ask(ports[1], b"/metrics") == metrics
        if "metrics_address" in settings:
            assert await ask(ports[1], b"/metrics", settings["metrics_address"]) == 200
        listeners.close()

    with caplog.at_level(logging.INFO, "pyruntime.server"):
        run(check())
    expected = []
    if settings.get("allow_http", True):
        expected.append(f"Started HTTPService at 127.0.0.1:{ports[0]}")
    if settings.get("allow_metrics", True):
        expected.append(f"Started Metrics Service at {settings.get('metrics_address', '127.0.0.1')}:{ports[1]}")
    if settings.get("allow_http", True):
        expected.append(f"Models can be tried in a browser at http://127.0.0.1:{ports[0]}/")
    assert caplog.messages == expected


@pytest.mark.parametrize(("taken", "service"), [(0, "HTTP"), (1, "Metrics")])
def test_port_that_is_taken(ports, taken, service):
    """The error names the service and the port; ports that were opened before are closed again."""

    async def check():
        listeners = listeners_of(ports)
        with pytest.raises(SettingsError) as caught:
            await listeners.open()
        said = str(caught.value)
        assert said.startswith(f"{service} cannot be served at 127.0.0.1:{ports[taken]}: ")
        assert said.endswith(f"; choose another port with --{service.lower()}-port")
        assert await ask(ports[1 - taken], b"/metrics") is None

    with socket.create_server(("127.0.0.1", ports[taken])):
        run(check())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_port_that_is_reserved(ports, host):
    """A reserved port can be listened on by one server only, at any address, on which all tests with servers rely."""
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, ports[0]))
    with socket.create_server((host, ports[0])), pytest.raises(OSError, match="in use"):
        socket.create_server((host, ports[0]))


def test_closing(ports):
    """New connections are refused, and connections without a request are closed."""

    async def check():
        listeners = listeners_of(ports)
        await listeners.open()
        streams = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        for reader, writer in streams:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
        listeners.close()
        for reader, writer in streams:
            await reader.read()
            writer.close()
            await writer.wait_closed()
        assert [await ask(port, b"/") for port in ports] == [None, None]

    run(check())


@pytest.mark.parametrize("served", ["http", "metrics"])
def test_what_waits_for_room_too_long(ports, served, monkeypatch):
    """It is refused, whichever services there are."""
    monkeypatch.setattr(connection_limits, "CHECK_S", 0.0)
    monkeypatch.setattr(pending_bytes, "WAIT_S_MAX", 0.0)

    async def check():
        listeners = listeners_of(ports, allow_http=served == "http", allow_metrics=served == "metrics")
        pending = listeners._state.pending_bytes
        holders = [pending.share().claim() for _ in range(2)]
        for holder in holders:
            holder.take(pending.connection_limit)
        refused = asyncio.get_running_loop().create_future()
        pending.share().claim().take_or_wait(2, refused.set_result)
        assert not refused.done()
        await listeners.open()
        assert "--max-pending-bytes" in str(await refused)
        listeners.close()
        listeners.abort()

    run(check())


def test_many_clients_at_once(ports):
    """The loop accepts simultaneous connections in fewer iterations than there are clients."""
    clients = 64

    async def check():
        listeners = listeners_of(ports)
        await listeners.open()
        # Connecting does not wait for the loop: the kernel completes it.
        sockets = [socket.create_connection(("127.0.0.1", ports[0])) for _ in range(clients)]
        looks = 0
        while len(listeners._connections) < clients:
            await asyncio.sleep(0)
            looks += 1
        assert looks <= clients / 2
        listeners.abort()
        listeners.close()
        for sock in sockets:
            sock.close()

    run(check())


def test_aborting(ports):
    """Connections are cut in every state."""

    async def check():
        listeners = listeners_of(ports)
        await listeners.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"POST /v2/repository/index HTTP/1.1\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        listeners.abort()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        listeners.close()

    run(check())
