# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Guards of mappings whose memory goes away, in processes of their own where a bus error is meant."""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from pyruntime.stub.guard import Guard
from pyruntime.utils.errors import LocalError

PAGE = mmap.PAGESIZE
PAGES = 8


class Mapped:
    """Memory of this process that it maps, as a client and a stub would."""

    def __init__(self, flags=mmap.MAP_PRIVATE):
        self.fd = os.memfd_create("a test")
        os.ftruncate(self.fd, PAGES * PAGE)
        self.map = mmap.mmap(self.fd, PAGES * PAGE, flags)
        self.array = np.frombuffer(self.map, np.uint8)
        self.pointer = self.array.ctypes.data
        os.pwrite(self.fd, b"\x07" * PAGES * PAGE, 0)

    def close(self):
        del self.array
        self.map.close()
        os.close(self.fd)


@pytest.fixture
def mapped():
    made = Mapped()
    yield made
    made.close()


@pytest.fixture
def guard(mapped):
    made = Guard(mapped.pointer, PAGES * PAGE)
    yield made
    made.end()


def test_nothing_happens(mapped, guard):
    """A guard is not hit as long as the memory is there."""
    assert (mapped.array == 7).all()
    assert not guard.is_hit
    guard.end()
    assert not guard.is_hit


def test_read(mapped, guard):
    """Where the memory ended there are zeros, and what is left is what it was."""
    os.ftruncate(mapped.fd, 3 * PAGE)
    assert (mapped.array[: 3 * PAGE] == 7).all()
    assert not guard.is_hit
    assert (mapped.array[3 * PAGE :] == 0).all()
    assert guard.is_hit


def test_write():
    """A shared mapping can be written to the end; what is behind the end of the memory gets lost."""
    mapped = Mapped(mmap.MAP_SHARED)
    guard = Guard(mapped.pointer, PAGES * PAGE)
    os.ftruncate(mapped.fd, PAGE)
    mapped.array[:] = 9
    assert guard.is_hit
    assert os.fstat(mapped.fd).st_size == PAGE
    assert os.pread(mapped.fd, PAGES * PAGE, 0) == b"\x09" * PAGE
    guard.end()
    mapped.close()


def test_stays_hit(mapped, guard):
    """The memory may come back: what was missing was missing. A guard can be ended twice."""
    os.ftruncate(mapped.fd, 0)
    assert mapped.array[-1] == 0
    os.ftruncate(mapped.fd, PAGES * PAGE)
    guard.end()
    guard.end()
    assert guard.is_hit


def test_several(mapped):
    """Only the guard of the mapping whose memory was missing is hit, and a new guard is not."""
    other = Mapped()
    guards = [Guard(each.pointer, PAGES * PAGE) for each in (mapped, other)]
    os.ftruncate(other.fd, 0)
    assert other.array[0] == 0
    assert [each.is_hit for each in guards] == [False, True]
    for each in guards:
        each.end()
    again = Guard(mapped.pointer, PAGES * PAGE)
    assert not again.is_hit
    again.end()
    other.close()


def test_native_code(mapped, guard):
    """Code that holds no GIL is guarded like any other."""
    os.ftruncate(mapped.fd, 0)
    target = ctypes.create_string_buffer(b"\1" * PAGE, PAGE)
    ctypes.CDLL(None).memcpy(target, ctypes.c_void_p(mapped.pointer), ctypes.c_size_t(PAGE))
    assert target.raw == bytes(PAGE)
    assert guard.is_hit


def run(code):
    """How a Python ends that runs `code`, and what it says on standard error."""
    preamble = f"""
        import faulthandler, mmap, os, signal
        import numpy as np
        from pyruntime.stub.guard import Guard

        def shrunk():
            fd = os.memfd_create("a test")
            os.ftruncate(fd, {PAGE})
            array = np.frombuffer(mmap.mmap(fd, {PAGE}), np.uint8)
            os.ftruncate(fd, 0)
            return array

        array = shrunk()
    """
    source = textwrap.dedent(preamble) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.processes
class TestOthers:
    def test_mapping_without_a_guard(self):
        """A bus error elsewhere ends the process as ever, with a crash report."""
        code, report = run("faulthandler.enable(); Guard(array.ctypes.data + (1 << 40), 4096); array[0]")
        assert code == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in report

    def test_after_the_end(self):
        """A guard that has ended guards nothing."""
        code, _ = run("guard = Guard(array.ctypes.data, 4096); guard.end(); array[0]")
        assert code == -signal.SIGBUS

    def test_signal_of_a_process(self):
        """SIGBUS that is sent to the process ends it."""
        code, _ = run("Guard(array.ctypes.data, 4096); os.kill(os.getpid(), signal.SIGBUS)")
        assert code == -signal.SIGBUS

    def test_handler_of_a_model(self):
        """A guard comes before a handler that was installed after an earlier guard."""
        code = (
            "Guard(array.ctypes.data + (1 << 40), 4096); faulthandler.enable(); guard = Guard(array.ctypes.data, 4096)"
        )
        assert run(code + "; assert array[0] == 0 and guard.is_hit") == (0, "")

    def test_handler_of_a_model_that_gives_way(self):
        """A bus error elsewhere ends the process, although that handler puts the earlier one back."""
        elsewhere = "Guard(array.ctypes.data + (1 << 40), 4096)"
        code, report = run(f"{elsewhere}; faulthandler.enable(); {elsewhere}; array[0]")
        assert code == -signal.SIGBUS
        assert report.count("Fatal Python error: Bus error") == 1

    def test_guarded(self):
        """For comparison."""
        assert run("guard = Guard(array.ctypes.data, 4096); assert array[0] == 0 and guard.is_hit") == (0, "")


def test_too_many():
    """There is a limit, which is an error."""
    guards = []

    def guard_all():
        while True:
            guards.append(Guard(PAGE, PAGE))

    with pytest.raises(LocalError, match=r"^this process maps too many tensors in memory of clients$"):
        guard_all()
    for each in guards:
        each.end()
