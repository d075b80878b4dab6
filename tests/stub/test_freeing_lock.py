# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of memory that destructors free."""

import threading

import pytest

from pyruntime.stub.freeing_lock import FreeingLock


@pytest.fixture
def freed():
    """What was freed, in order."""
    return []


def in_thread(call, *arguments):
    """Have another thread call something, which must not wait for this one."""
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_nobody_has_the_lock(freed):
    """Things are freed at once."""
    FreeingLock(freed.append).take_back(1)
    assert freed == [1]


def test_the_same_thread_has_the_lock(freed):
    """Things are freed behind it."""
    lock = FreeingLock(freed.append)
    with lock:
        lock.take_back(1)
        assert freed == []
    assert freed == [1]


def test_another_thread_has_the_lock(freed):
    """That thread frees things, and the destructor does not wait."""
    lock = FreeingLock(freed.append)
    with lock:
        in_thread(lock.take_back, 1)
        assert freed == []
    assert freed == [1]


def test_things_are_freed_with_the_lock(freed):
    """There may be more of them than calls within each other."""

    def free(each):
        with lock:
            freed.append(each)

    lock = FreeingLock(free)
    with lock:
        for each in range(5000):
            lock.take_back(each)
    assert freed == list(range(5000))


def test_things_that_free_others(freed):
    """These are freed, too."""

    def free(each):
        freed.append(each)
        if each < 3:
            lock.take_back(each + 1)

    lock = FreeingLock(free)
    lock.take_back(0)
    assert freed == [0, 1, 2, 3]


def test_another_thread_frees(freed):
    """A destructor does not wait for it, and what it leaves is freed."""

    def free(each):
        if each == 1:
            in_thread(lock.take_back, 2)
            in_thread(take)
        freed.append(each)

    def take():
        with lock:
            lock.take_back(3)

    lock = FreeingLock(free)
    lock.take_back(1)
    assert freed == [1, 2, 3]


def test_things_that_cannot_be_freed(freed):
    """The next ones are."""

    def free(each):
        if each == 1:
            raise ValueError(each)
        freed.append(each)

    lock = FreeingLock(free)
    with pytest.raises(ValueError, match="1"):
        lock.take_back(1)
    lock.take_back(2)
    assert freed == [2]
