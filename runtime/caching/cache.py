# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of response caches, and the threads that use one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyruntime.runtime.caching.lru import Answer

_T = TypeVar("_T")

# The number of simultaneous lookups and insertions. A remote cache waits for the network.
THREADS_MAX = 8


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a cache has done so far, and what it has now. `used` is the part of its memory that is in use, up to 1.0.

    `lookup_ns` and `insertion_ns` are durations in all.
    """

    used: float
    entries: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int


class AnswerCache(Protocol):
    """A cache that keeps prepared answers with its entries. Neither method blocks."""

    def find_answer(self, request: Hashable) -> tuple[Answer, int] | None:
        """The answer that was prepared for a request, and the nanoseconds that finding it took; None if there is none.

        It counts as a lookup if there is one. Belongs to the event loop's thread.
        """

    def add_answer(self, key: str, request: Hashable, answer: Answer, size: int) -> None:
        """Prepare the answer from the entry of a key to a request. Both take `size` bytes of memory."""


class ResponseCache(ABC):
    """The server's response cache. No other method may be called before `open` has returned.

    `answers` is where it keeps prepared answers, None if it keeps none.
    """

    answers: AnswerCache | None = None

    def __init__(self, name: str) -> None:
        self.name = name
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="cache")

    @property
    @abstractmethod
    def failure(self) -> type[Exception]:
        """The type of the errors of `lookup` and `insert`."""

    @abstractmethod
    async def open(self) -> None:
        """Make the cache ready. Raises LoadError."""

    @abstractmethod
    def lookup(self, key: str) -> memoryview | None:
        """The entry of a key, None if there is none. May block. Raises `failure`."""

    @abstractmethod
    def insert(self, key: str, entry: bytes) -> None:
        """Insert an entry under a key, unless the key has one. May block. Raises `failure`."""

    def post(self, step: Callable[[], _T], call_back: Callable[[asyncio.Future[_T]], None], size: int) -> None:
        """Run `step` on a thread, and then call `call_back` with its future on the event loop's thread.

        `size` is how many bytes the step reads, about: a cache that does not block need not use a thread for few.
        """
        asyncio.get_running_loop().run_in_executor(self._pool, step).add_done_callback(call_back)

    @property
    def usage(self) -> CacheUsage | None:
        """Its usage, for the metrics; None if that is not known here."""
        return None

    async def close(self) -> None:
        """End the cache. No model may use it any more."""
        self._pool.shutdown(wait=False)
