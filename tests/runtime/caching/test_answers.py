# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prepared answers of model versions, in the cache `local`."""

import asyncio

import pytest

from pyruntime.runtime.caching.answers import ANSWER_BYTES_MAX, CachedResponse, PreparedAnswers, Repeatable
from pyruntime.runtime.caching.local import LocalCache
from pyruntime.runtime.observe.statistics import CacheStatistics, ModelStatistics
from pyruntime.runtime.requests.types import InferResponse

REQUEST = Repeatable("request", "", 7)
HIT = CachedResponse("m", 1, "", [], key="key")


@pytest.fixture
def cache():
    """An open cache with an entry."""
    made = LocalCache("local", {"size": "1000000"})
    asyncio.run(made.open())
    made.insert("key", b"entry")
    yield made
    asyncio.run(made.close())


def answers_of(cache):
    """Those of another version."""
    return PreparedAnswers(cache, ModelStatistics(cache=CacheStatistics()))


def test_answer(cache):
    """It has all parts, and each time that it is found counts as a hit everywhere."""
    answers = answers_of(cache)
    assert answers.find("request") is None
    answers.prepare(REQUEST, HIT, 8, lambda: "an answer")
    assert [answers.find("request"), answers.find("request"), answers.find("other")] == ["an answer"] * 2 + [None]
    statistics = answers._statistics
    assert (statistics.cache.hit_count, statistics.success_count, statistics.cache.miss_count) == (2, 2, 0)
    assert (cache.usage.hits, cache.usage.misses, cache.usage.entries) == (2, 0, 1)
    assert statistics.success_ns == statistics.cache.hit_ns >= cache.usage.lookup_ns >= 0
    assert statistics.queue_ns == 0


def test_versions(cache):
    """A version does not answer requests to another one, which may check them differently."""
    first, second = answers_of(cache), answers_of(cache)
    first.prepare(REQUEST, HIT, 6, lambda: "answer")
    assert (first.find("request"), second.find("request")) == ("answer", None)


@pytest.mark.parametrize(
    ("response", "size"),
    [
        (InferResponse("m", 1, "", []), 1),
        (HIT, ANSWER_BYTES_MAX + 1),
        (CachedResponse("m", 1, "", [], key="evicted"), 1),
        (CachedResponse("m", 1, "in the key", [], key="key"), 1),
    ],
)
def test_not_prepared(cache, response, size):
    """What is not from the cache, is long, is of an entry that is gone, or has an id that others may not have."""
    answers = answers_of(cache)
    answers.prepare(REQUEST, response, size, lambda: "answer")
    assert answers.find("request") is None
