# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests that came before, byte for byte, with the bytes that were prepared for them.

Most requests that a cache answers are repetitions: the same bytes come again. Such a request needs no tensors, no key
and no response object. A frontend describes a request by all of its bytes that the answer depends on, and looks for the
answer before it decodes them. An answer is prepared when the cache has answered a request from an entry for the first
time, so requests that are never repeated take no memory. It lives as long as the entry: see lru.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count

from pyruntime.runtime.caching.cache import AnswerCache
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferResponse

# The longest request, and the longest answer, in bytes, that are prepared. Hashing and comparing a request takes the
# event loop some microseconds then; the digest of a longer one costs more than all else of a hit.
REQUEST_BYTES_MAX = 16 << 10
ANSWER_BYTES_MAX = 16 << 10

_numbers = count()


@dataclass(slots=True)
class CachedResponse(InferResponse):
    """A response from the cache whose encoded form may answer the same request again. `key` is that of its entry."""

    key: str = ""


class PreparedAnswers:
    """See the module. Those of one model version: its configuration decides which requests are valid.

    All methods belong to the event loop's thread.
    """

    def __init__(self, cache: AnswerCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        # Tells requests to this version from those to others, also to an earlier one with the same number.
        self._number = next(_numbers)

    def find(self, request: Hashable) -> bytes | None:
        """The answer to a request that arrives now, None if there is none. It counts as a hit, and must be sent."""
        found = self._cache.find_answer((self._number, request))
        if found is None:
            return None
        answer, took_ns = found
        self._statistics.cache_hit(0, took_ns, took_ns)
        return answer

    def prepare(self, request: Hashable, size: int, response: InferResponse, parts: list[bytes | memoryview]) -> None:
        """Keep the encoded form of a response, if it is from the cache, as the answer to a request of `size` bytes."""
        if isinstance(response, CachedResponse) and sum(map(len, parts)) <= ANSWER_BYTES_MAX:
            self._cache.add_answer(response.key, (self._number, request), size, b"".join(parts))
