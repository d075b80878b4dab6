# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.tracing import buckets as module
from pyruntime.runtime.tracing.buckets import Buckets, Write


@pytest.fixture
def complete(traces):
    """A complete tree of a sampler's: `complete(sampler)`, or of one with these values."""

    def make(sampler=None, **values):
        tree = traces.tree(**values)
        if sampler is not None:
            tree.sampler = sampler
        tree.traces.append(traces.trace(tree))
        tree.sampler.under_way -= sampler is None
        return tree

    return make


def test_together(complete):
    """Without a log frequency, and without end, each is written at once."""
    buckets = Buckets()
    tree = complete()
    assert buckets.add(tree) == Write(tree.traces, apart=False)
    assert buckets.flush_all() == []


def test_log_frequency(complete):
    """The given number of traces is written together, to a file of its own."""
    buckets = Buckets()
    first = complete(log_frequency=2)
    second, third = complete(first.sampler), complete(first.sampler)
    assert buckets.add(first) is None
    assert buckets.add(second) == Write(first.traces + second.traces, apart=True)
    assert buckets.add(third) is None
    assert buckets.flush_all() == [Write(third.traces, apart=True)]


def test_count(complete):
    """A limited number of them goes to a file of its own when the last one is complete."""
    buckets = Buckets()
    first = complete(count=2)
    sampler = first.sampler
    assert buckets.add(first) is None
    assert sampler.pick()
    assert sampler.left == 0
    sampler.force()
    second, third = complete(sampler), complete(sampler)
    sampler.under_way -= 1
    assert buckets.add(second) is None
    sampler.under_way -= 1
    assert buckets.add(third) == Write(first.traces + second.traces + third.traces, apart=True)


def test_count_that_is_not_reached(complete):
    """Those that were complete go with all others when the server stops."""
    buckets = Buckets()
    tree = complete(count=2)
    assert buckets.add(tree) is None
    assert buckets.flush_all() == [Write(tree.traces, apart=False)]


def test_flush(complete):
    """The traces that a sampler has picked are written, once, before its way of writing changes."""
    buckets = Buckets()
    tree, other = complete(log_frequency=2), complete(log_frequency=2)
    buckets.add(tree)
    buckets.add(other)
    assert buckets.flush(tree.sampler, apart=True) == Write(tree.traces, apart=True)
    assert buckets.flush(tree.sampler, apart=True) is None
    assert buckets.flush_all() == [Write(other.traces, apart=True)]


@pytest.mark.parametrize(("limit", "value"), [("KEPT_MAX", 2), ("KEPT_BYTES_MAX", 200)])
def test_limits(complete, monkeypatch, limit, value):
    """However many are wanted in one file, the memory that they are kept in has an end."""
    monkeypatch.setattr(module, limit, value)
    buckets = Buckets()
    first = complete(log_frequency=1000)
    second = complete(first.sampler)
    first.bytes_left -= 100
    second.bytes_left -= 100
    assert buckets.add(first) is None
    assert buckets.add(second) == Write(first.traces + second.traces, apart=True)
