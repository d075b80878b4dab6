# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The families of the server itself."""

from pyruntime.runtime.app.metrics import cache_lines
from pyruntime.runtime.caching.cache import CacheUsage


def test_cache():
    """Triton's gauges of the cache `local`, without labels, durations in microseconds."""
    lines = cache_lines(CacheUsage(0.25, 2, 3, 4, 5, 6_789, 7_890)).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "nv_cache_util 0.25",
        "nv_cache_num_entries 2",
        "nv_cache_num_hits 3",
        "nv_cache_num_misses 4",
        "nv_cache_num_lookups 7",
        "nv_cache_num_evictions 5",
        "nv_cache_lookup_duration 6",
        "nv_cache_insertion_duration 7",
    ]


def test_other_caches():
    """A cache that does not say what it has is not on the page."""
    assert cache_lines(None) == ""
