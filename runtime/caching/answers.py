# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests that came before, byte for byte but for their ids, with what was prepared for them.

Most requests that a cache answers are repetitions: the same bytes come again, perhaps with another id. Such a request
needs no tensors, no digest and no response object. A frontend splits a request into its id and a key, which is all else
that the answer depends on, and looks for the answer before it decodes them. An answer is prepared when the cache has
answered a request from an entry for the first time, so requests that are never repeated take no memory. It lives as
long as the entry: see lru.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from pyruntime.runtime.caching.cache import AnswerCache
from pyruntime.runtime.caching.lru import Answer
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferResponse

# The longest request for which an answer is prepared, and the longest answer, in bytes. Hashing and comparing a request
# takes the event loop some microseconds then; the digest of a longer one costs more than all else of a hit.
REQUEST_BYTES_MAX = 16 << 10
ANSWER_BYTES_MAX = 16 << 10

_numbers = count()


@dataclass(slots=True)
class CachedResponse(InferResponse):
    """A response from the cache whose encoded form may answer the same request again. `key` is that of its entry."""

    key: str = ""


class Repeatable(NamedTuple):
    """A request of `size` bytes that may come again, with another id. `id` is "" if the key may have one."""

    key: Hashable
    id: str
    size: int


class PreparedAnswers:
    """See the module. Those of one model version: its configuration decides which requests are valid.

    All methods belong to the event loop's thread.
    """

    def __init__(self, cache: AnswerCache, statistics: ModelStatistics) -> None:
        self._cache = cache
        self._statistics = statistics
        # Tells requests to this version from those to others, also to an earlier one with the same number.
        self._number = next(_numbers)

    def find(self, key: Hashable) -> Answer | None:
        """The answer to a request that arrives now, None if there is none. It counts as a hit, and must be sent."""
        found = self._cache.find_answer((self._number, key))
        if found is None:
            return None
        answer, took_ns = found
        self._statistics.cache_hit(0, took_ns, took_ns)
        return answer

    def prepare(self, request: Repeatable, response: InferResponse, nbytes: int, make: Callable[[], Answer]) -> None:
        """Keep a response to a request, if it is from the cache. `make` makes its encoded form, of about `nbytes`.

        It is not kept if the response has an id that is a part of the key.
        """
        if isinstance(response, CachedResponse) and nbytes <= ANSWER_BYTES_MAX and response.id == request.id:
            self._cache.add_answer(response.key, (self._number, request.key), make(), request.size + nbytes)
