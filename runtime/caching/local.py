# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The response cache `local`, in the memory of the server."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from pyruntime.runtime.caching.cache import CacheUsage, ResponseCache
from pyruntime.runtime.caching.lru import Answer, LeastRecentlyUsed
from pyruntime.utils.errors import LoadError, LocalError

_LOG = logging.getLogger("pyruntime.caching")

_T = TypeVar("_T")

# A request or a response up to this size, in bytes, is digested and copied on the event loop: a thread costs more.
AT_ONCE_MAX = 64 << 10


class LocalCache(ResponseCache):
    """See the module. Its only setting is `size`, in bytes."""

    failure = LocalError

    def __init__(self, name: str, config: Mapping[str, str]) -> None:
        super().__init__(name)
        self._size = config.get("size", "")
        self._entries = LeastRecentlyUsed(0)
        # Threads look up and insert what is large.
        self._lock = threading.Lock()
        self._hits = self._misses = self._lookup_ns = self._insertion_ns = 0
        self.answers = self

    async def open(self) -> None:
        """See ResponseCache."""
        size = self._size
        if not (size.isascii() and size.isdecimal() and int(size) > 0):
            hint = " Each setting needs an option --cache-config of its own." if "," in size else ""
            raise LoadError(f"Failed to initialize LocalCache: config didn't contain a valid 'size' field.{hint}")
        self._entries = LeastRecentlyUsed(int(size))
        _LOG.info("Response cache '%s' has %d bytes of the server's memory", self.name, int(size))

    def lookup(self, key: str) -> memoryview | None:
        """See ResponseCache. Never blocks for long."""
        begun_ns = time.monotonic_ns()
        with self._lock:
            entry = self._entries.find(key)
            if entry is None:
                self._misses += 1
            else:
                self._hits += 1
            self._lookup_ns += time.monotonic_ns() - begun_ns
        return None if entry is None else memoryview(entry)

    def insert(self, key: str, entry: bytes) -> None:
        """See ResponseCache. Never blocks for long."""
        begun_ns = time.monotonic_ns()
        with self._lock:
            self._entries.add(key, entry)
            self._insertion_ns += time.monotonic_ns() - begun_ns

    def find_answer(self, request: Hashable) -> tuple[Answer, int] | None:
        """See AnswerCache."""
        begun_ns = time.monotonic_ns()
        with self._lock:
            answer = self._entries.find_answer(request)
            if answer is None:
                return None
            took_ns = time.monotonic_ns() - begun_ns
            self._hits += 1
            self._lookup_ns += took_ns
        return answer, took_ns

    def add_answer(self, key: str, request: Hashable, answer: Answer, size: int) -> None:
        """See AnswerCache."""
        with self._lock:
            self._entries.add_answer(key, request, answer, size)

    @property
    def usage(self) -> CacheUsage:
        """See ResponseCache."""
        with self._lock:
            entries = self._entries
            return CacheUsage(
                entries.used / entries.size if entries.size else 0.0,
                len(entries),
                self._hits,
                self._misses,
                entries.evictions,
                self._lookup_ns,
                self._insertion_ns,
            )

    def post(self, step: Callable[[], _T], call_back: Callable[[asyncio.Future[_T]], None], size: int) -> None:
        """See ResponseCache."""
        if size > AT_ONCE_MAX:
            super().post(step, call_back, size)
            return
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(step())
        except Exception as exc:
            done.set_exception(exc)
        done.add_done_callback(call_back)
