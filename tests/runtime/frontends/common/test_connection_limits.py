# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import socket
from types import SimpleNamespace

import pytest

from pyruntime.runtime import descriptors
from pyruntime.runtime.frontends.common import connection_limits
from pyruntime.runtime.frontends.common.connection_limits import ACCEPTS_PER_COUNT, ConnectionChecks, ConnectionLimit
from pyruntime.runtime.inference import pending_bytes
from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.runtime.inference.turns import Turns
from tests.patience import PATIENCE_S

from ...event_loops import settle


class Connection:
    """Notes how it is checked."""

    is_idle = True

    def __init__(self):
        self.checks = asyncio.Queue()

    def check(self, now, crowded):
        self.checks.put_nowait(crowded)


class Other:
    """A connection that checks itself."""

    def __init__(self, idle=True):
        self.is_idle = idle
        self.closed = False

    def close_idle(self):
        self.closed = True
        self.is_idle = False


@pytest.fixture
def held(monkeypatch):
    """The process may have 240 descriptors; the test sets how many there are besides connections."""
    numbers = {"held": 0, "connections": 0}
    monkeypatch.setattr(descriptors, "limit", lambda: 240)
    monkeypatch.setattr(descriptors, "open_count", lambda: sum(numbers.values()))
    return numbers


def test_limit_follows(held):
    """What else is open lowers the limit, and raises it when it is closed."""
    limit = ConnectionLimit()
    for number, expected in [(0, 120), (40, 100), (180, 12), (200, 0), (240, 0), (0, 120)]:
        held["held"] = number
        limit.count(0)
        assert limit.connections_max == expected


def test_limit_counts_for_new_connections(held):
    """New connections find the limit that holds after a model was loaded, after a few of them."""
    limit = ConnectionLimit()
    held["held"] = 180
    held["connections"] = 12
    accepted = [limit.has_room(12) for _ in range(ACCEPTS_PER_COUNT)]
    assert accepted == [True] * (ACCEPTS_PER_COUNT - 1) + [False]


def test_limit_without_descriptors(held, monkeypatch):
    """If they cannot even be counted there are no more connections than now."""

    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(descriptors, "open_count", fail)
    limit = ConnectionLimit()
    limit.count(5)
    assert not limit.has_room(5)
    assert limit.has_room(4)


def test_idle_connections_give_way(held):
    """A new connection takes the place of an idle one, if there still is one."""
    limit = ConnectionLimit()
    busy, gone, idle = Other(idle=False), Other(), Other()
    limit.idle = [busy, idle, gone]
    gone.is_idle = False
    assert limit.has_room(120)
    assert idle.closed
    assert not limit.has_room(120)
    assert not busy.closed
    assert not gone.closed


def test_watch(monkeypatch, held):
    """Connections of a kind are checked again and again, until the end; and whether there are many of all kinds."""
    monkeypatch.setattr(connection_limits, "CHECK_S", 0.0)
    monkeypatch.setattr(pending_bytes, "WAIT_S_MAX", 0.0)
    held["held"] = 188  # four connections of 52 descriptors

    async def check():
        first = Connection()
        everybody = {first, Other()}
        pending = PendingBytes(2, Turns(1))
        waiting = pending.share().claim()
        for _ in range(2):
            pending.share().claim().take(1)
        refused = asyncio.Event()
        waiting.take_or_wait(1, lambda failure: refused.set())
        watch = ConnectionChecks(everybody, Connection, pending)
        watch.begin()
        held["connections"] = 2
        assert [await first.checks.get() for _ in range(3)] == [True] * 3  # two of four are many
        await refused.wait()
        watch.end()
        watch.end()
        while not first.checks.empty():
            first.checks.get_nowait()
        await settle()
        assert first.checks.empty()
        everybody.clear()
        everybody.add(first)
        held["connections"] = 1
        watch.begin()
        assert not await first.checks.get()
        watch.end()

    asyncio.run(asyncio.wait_for(check(), PATIENCE_S))


def test_excess(monkeypatch, held):
    """As many idle connections are closed as there are too many, and no busy one."""
    monkeypatch.setattr(connection_limits, "CHECK_S", 0.0)

    async def check():
        busy, idle = [Other(idle=False) for _ in range(3)], [Other() for _ in range(5)]
        checked = Connection()
        checked.is_idle = False
        watch = ConnectionChecks([*busy, *idle, checked], Connection, PendingBytes(1, Turns(1)), ConnectionLimit())
        held["connections"] = 9
        watch.begin()
        await checked.checks.get()
        assert not [each for each in idle if each.closed]
        watch.end()
        held["held"] = 186  # six connections of 54 descriptors
        watch.begin()
        while not checked.checks.empty():
            checked.checks.get_nowait()
        await checked.checks.get()
        watch.end()
        assert len([each for each in idle if each.closed]) == 3
        assert not [each for each in busy if each.closed]

    asyncio.run(asyncio.wait_for(check(), PATIENCE_S))


def test_what_a_client_has_not_read():
    """Bytes are acknowledged as the client's kernel takes them; what is unread is seen without reading it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = SimpleNamespace(get_extra_info=lambda name: ours, get_write_buffer_size=lambda: 5)
        assert connection_limits.unacknowledged(transport) == 5
        assert not connection_limits.has_unread(transport)
        ours.send(b"x" * 1000)
        before = connection_limits.unacknowledged(transport)
        assert before > 5
        theirs.recv(1000)
        assert connection_limits.unacknowledged(transport) == 5
        theirs.send(b"x")
        assert connection_limits.has_unread(transport)
    assert connection_limits.unacknowledged(transport) == 5
    assert not connection_limits.has_unread(transport)
