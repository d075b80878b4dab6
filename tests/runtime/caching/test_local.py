# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The cache in the server's memory: its setting, and which thread does the work."""

import asyncio
import threading
from itertools import count

import pytest

from pyruntime.runtime.caching.cache import CacheUsage
from pyruntime.runtime.caching.local import AT_ONCE_MAX, LocalCache
from pyruntime.runtime.caching.lru import OVERHEAD_BYTES
from pyruntime.utils.errors import LoadError


@pytest.mark.parametrize("config", [{}, {"size": ""}, {"size": "0"}, {"size": "x"}, {"size": "-1"}, {"size": "\u0661"}])
def test_no_size(config):
    """It needs a size, in Triton's words."""
    with pytest.raises(LoadError) as caught:
        asyncio.run(LocalCache("local", config).open())
    assert str(caught.value) == "Failed to initialize LocalCache: config didn't contain a valid 'size' field."


def test_two_settings_in_one_option():
    """The error says that each needs an option."""
    with pytest.raises(LoadError, match=r"valid 'size' field\. Each setting needs an option --cache-config of its own"):
        asyncio.run(LocalCache("local", {"size": "4096,shards=2"}).open())


def test_entries():
    """An entry is found as it was inserted."""

    async def run():
        cache = LocalCache("local", {"size": "4096"})
        await cache.open()
        assert cache.lookup("a") is None
        cache.insert("a", b"entry")
        assert cache.lookup("a") == b"entry"
        with pytest.raises(cache.failure, match="is greater than total cache size"):
            cache.insert("b", bytes(5000))
        await cache.close()

    asyncio.run(run())


@pytest.mark.parametrize(("size", "is_here"), [(AT_ONCE_MAX, True), (AT_ONCE_MAX + 1, False)])
def test_threads(size, is_here):
    """What is large is done by a thread; the answer comes later in any case, on the event loop's thread."""

    async def run():
        cache = LocalCache("local", {"size": "1"})
        told, done = [], asyncio.Event()

        def call_back(future):
            told.append((threading.current_thread(), future.exception()))
            done.set()

        def step():
            told.append(threading.current_thread())
            raise ValueError

        cache.post(step, call_back, size)
        assert not done.is_set()
        await done.wait()
        here = threading.current_thread()
        assert (told[0] is here) is is_here
        assert told[1][0] is here
        assert isinstance(told[1][1], ValueError)
        await cache.close()

    asyncio.run(run())


def test_usage(monkeypatch):
    """It counts lookups, and knows what it has."""
    monkeypatch.setattr("time.monotonic_ns", count().__next__)

    async def run():
        cache = LocalCache("local", {"size": "1000"})
        assert cache.usage == CacheUsage(0.0, 0, 0, 0, 0, 0, 0)
        await cache.open()
        for key in "abc":
            cache.lookup(key)
            cache.insert(key, bytes(500 - OVERHEAD_BYTES))
        cache.lookup("c")
        assert cache.usage == CacheUsage(1.0, 2, 1, 3, 1, 4, 3)
        await cache.close()

    asyncio.run(run())
