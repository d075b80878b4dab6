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


@pytest.fixture
def table(monkeypatch):
    """A process that may have 132 descriptors, of which the test says how many are open."""
    monkeypatch.setattr(descriptors, "limit", lambda: 132)
    monkeypatch.setattr(descriptors, "of_connections", 0)

    def opened(count, of_connections=0):
        monkeypatch.setattr(descriptors, "open_count", lambda: count)
        monkeypatch.setattr(descriptors, "of_connections", of_connections)

    return opened


def start(name):
    """Whether the stub `name` may start."""
    with descriptors.room_for(name):
        pass


def test_clients_keep_descriptors(table):
    """No process is started with the last descriptors, so that a full server can be asked how it is."""
    most = 132 - descriptors.KEPT_FOR_CLIENTS - (descriptors.STARTING_STUB - descriptors.REGION)
    table(most)
    start("m_0")
    table(most + 1)
    with pytest.raises(
        OSError, match="m_0 needs 10 more descriptors, and of 132 there are 105 left, of which up to 96"
    ):
        start("m_0")


def test_clients_have_descriptors(table):
    """What clients have of those that are kept for them is no model's; the last ones are not a model's either."""
    most = 132 - descriptors.FREE_FOR_CLIENTS - (descriptors.STARTING_STUB - descriptors.REGION)
    table(most, of_connections=80)
    start("m_0")
    table(most + 1, of_connections=80)
    with pytest.raises(OSError, match="m_0 needs 10 more descriptors, and of 132 there are 33 left"):
        start("m_0")


def test_shortage_while_others_start(table):
    """A stub that starts or ends gives descriptors back: as long as one does, nobody says that there is no room."""
    table(20)
    with descriptors.room_for("m_0"):
        table(30)
        assert descriptors.shortage(1) == ""
    assert descriptors.shortage(1).startswith("its 1 process needs 12 ")


def test_shortage(table):
    """A model that cannot have room is told how much it needs; what clients have might come back."""
    table(20)
    assert descriptors.shortage(1) == ""
    assert descriptors.shortage(2).startswith(
        "its 2 processes need 19 descriptors in the server, and of 132 only 16 are left for models. Unload other models"
    )
    table(30, of_connections=10)
    assert descriptors.shortage(1) == ""
    table(30)
    assert descriptors.shortage(1).startswith("its 1 process needs 12 ")


def test_room_without_a_limit(monkeypatch):
    """Without a limit there is room."""
    monkeypatch.setattr(descriptors, "limit", lambda: None)
    start("m_0")
    assert descriptors.shortage(1 << 20) == ""
