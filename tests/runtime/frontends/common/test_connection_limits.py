# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import asyncio
import resource

import pytest

from pyruntime.runtime.frontends.common import connection_limits
from pyruntime.runtime.frontends.common.connection_limits import CONNECTIONS_MAX, ConnectionChecks, connections_max


class Connection:
    """Notes how it is checked."""

    def __init__(self):
        self.checks = asyncio.Queue()

    def check(self, now, crowded):
        self.checks.put_nowait(crowded)


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(256, 128), (1024, 768), (1 << 20, CONNECTIONS_MAX), (resource.RLIM_INFINITY, CONNECTIONS_MAX)],
)
def test_connections_max(monkeypatch, descriptors, expected):
    """There are descriptors left for everything else."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    assert connections_max() == expected


def test_watch(monkeypatch):
    """Connections of a kind are checked again and again, until the end; and whether there are many of all kinds."""
    monkeypatch.setattr(connection_limits, "CHECK_S", 0.0)
    monkeypatch.setattr(connection_limits, "connections_max", lambda: 4)

    async def check():
        first = Connection()
        everybody = {first, object()}
        watch = ConnectionChecks(everybody, Connection)
        watch.begin()
        assert [await first.checks.get() for _ in range(3)] == [True] * 3  # two of four are many
        watch.end()
        watch.end()
        while not first.checks.empty():
            first.checks.get_nowait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert first.checks.empty()
        everybody.clear()
        everybody.add(first)
        watch.begin()
        assert not await first.checks.get()
        watch.end()

    asyncio.run(asyncio.wait_for(check(), 20))
