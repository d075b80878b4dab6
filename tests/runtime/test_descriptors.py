# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The descriptors of this process."""

import gc
import os
import resource

import pytest

from pyruntime.runtime import descriptors


@pytest.fixture
def limits():
    """The limits of this process, which the test may lower."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_raise_limit(limits):
    """The soft limit becomes the hard one; the answer is the one from before."""
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    assert descriptors.limit() == hard - 1
    assert descriptors.raise_limit() == hard - 1
    assert descriptors.limit() == hard


def test_raise_limit_refused(limits, monkeypatch):
    """A sandbox that refuses it leaves the limit as it is."""

    def refuse(which, limits):
        raise ValueError("not allowed to raise maximum limit")

    before = descriptors.limit()
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_limit() == before
    monkeypatch.undo()
    assert descriptors.limit() == before


def test_no_limit(monkeypatch):
    """None, where there is none."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors.limit() is None


@pytest.mark.parametrize("counts", [True, False], ids=["counted by the kernel", "listed"])
def test_open_count(monkeypatch, counts):
    """Each descriptor that is opened is one more."""
    if not counts:
        monkeypatch.setattr(descriptors.os, "stat", lambda path: os.stat_result([0] * 10))
    gc.collect()  # what earlier tests have left must not be closed meanwhile
    before = descriptors.open_count()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]
    assert descriptors.open_count() == before + 10
    for each in opened:
        os.close(each)
    assert descriptors.open_count() == before
