# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The owners of tensors on GPUs that other processes read."""

import threading
import weakref

import pytest

from pyruntime.stub.gpu_owners import Owners


class Owner:
    """Its destructor may need the lock."""


@pytest.fixture
def lock():
    return threading.Lock()


def test_kept_as_often_as_it_is_held(lock):
    """Each reader lets go of it once."""
    owners, owner = Owners(lock), Owner()
    seen = weakref.ref(owner)
    for _ in range(2):
        owners.hold(512, owner)
    del owner
    assert owners.let_go(512)
    assert seen() is not None
    assert owners.let_go(512)
    assert seen() is None
    assert not owners.let_go(512)


def test_one_of_several(lock):
    """The others stay."""
    owners, owner = Owners(lock), Owner()
    owners.hold(0, owner)
    owners.hold(512, Owner())
    assert owners.let_go(512)
    assert not owners.let_go(512)
    assert owners.let_go(0)


def test_destructors_run_without_the_lock(lock):
    """They may take it."""
    owners, was_locked, owner = Owners(lock), [], Owner()
    weakref.finalize(owner, lambda: was_locked.append(lock.locked()))
    owners.hold(0, owner)
    del owner
    owners.let_go(0)
    assert was_locked == [False]
