# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large outputs in shared memory, by a backend that works on requests with a region for them."""

import gc
import os

import pytest

from pyruntime.runtime.regions import create_region
from pyruntime.utils.addresses import address, split
from pyruntime.utils.errors import OutOfMemoryError
from pyruntime.utils.memory_left import KEPT_SHARE, check_memory_left

# The smallest output that lies in a region, and the most free memory that is kept: see triton/buffer.h.
LARGE = 128 << 10
KEPT_BYTES_MAX = 256 << 20
OUTPUTS = ("OUT", "OTHER")
# The limit of a cgroup, and how much of it may be used; the rest stays free.
LIMIT = 1 << 30
FULL = LIMIT - LIMIT // KEPT_SHARE


@pytest.fixture
def shared(new_region):
    """A region of shared memory."""
    return new_region()


@pytest.fixture
def allocating(shared):
    """The same for native code."""
    return open_region(shared)


def open_region(shared, size=None, cgroups=()):
    from pyruntime.runtime.native import _triton

    return _triton.OutputRegion(shared.fileno(), size or shared.limit, address(shared.number, 0), cgroups)


@pytest.fixture
def instance(native):
    return native("responses.cc", outputs=OUTPUTS, decoupled=False)


def echo(instance, request_of, region, *contents):
    """Have the backend return contents; the buffers of the outputs."""
    inputs = [(name, "UINT8", [len(data)], data) for name, data in zip(OUTPUTS, contents, strict=False)]
    (job,) = instance.run(request_of("echo", *inputs, region=region))
    return outputs_of(job)


def outputs_of(job):
    ((_, failure, outputs, _),) = job.responses
    assert failure is None
    return [buffer for *_, buffer in outputs]


def leave(instance, request_of, region, size):
    """Have the backend ask for a buffer that it does not fill."""
    (job,) = instance.run(request_of("leave", ("IN", "UINT64", [1], size.to_bytes(8, "little")), region=region))
    (buffer,) = outputs_of(job)
    assert len(buffer) == size
    return buffer


def test_large_output(instance, request_of, shared, allocating):
    """It lies in the region, at the address that it says, whatever kind of memory the backend asks for."""
    data = os.urandom(LARGE)
    (buffer,) = echo(instance, request_of, allocating, data)
    number, offset = split(buffer.address)
    assert number == shared.number
    assert bytes(buffer) == data
    assert bytes(shared.view[offset : offset + LARGE]) == data


@pytest.mark.parametrize("size", [0, 1, LARGE - 1])
def test_small_output(instance, request_of, allocating, size):
    """It is the process's own."""
    (buffer,) = echo(instance, request_of, allocating, b"x" * size)
    assert (len(buffer), buffer.address) == (size, 0)


def test_request_without_a_region(instance, request_of):
    (buffer,) = echo(instance, request_of, None, b"x" * LARGE)
    assert buffer.address == 0


def test_blocks(instance, request_of, shared, allocating):
    """Outputs that are there at a time do not overlap; a block is used again when its output is gone."""
    first, second = echo(instance, request_of, allocating, b"1" * LARGE, b"2" * (LARGE + 1))
    third = leave(instance, request_of, allocating, LARGE)
    places = [(split(each.address)[1], len(each)) for each in (first, second, third)]
    (a, a_size), (b, b_size), (c, _) = sorted(places)
    assert a + a_size <= b
    assert b + b_size <= c
    assert (bytes(first), bytes(second)) == (b"1" * LARGE, b"2" * (LARGE + 1))
    free, used = second.address, shared.used_bytes
    del second
    assert leave(instance, request_of, allocating, LARGE + 2).address == free
    assert shared.used_bytes == used


def test_never_filled(instance, request_of, shared, allocating):
    """A fresh buffer that the backend does not fill has zeros, and has memory."""
    before = shared.used_bytes
    buffer = leave(instance, request_of, allocating, LARGE)
    assert shared.used_bytes >= before + LARGE
    assert not any(memoryview(buffer))


def test_huge_output(instance, request_of, shared, allocating):
    """The memory of a block that is too large to be kept is returned to the system; its addresses are used again."""
    try:
        check_memory_left(2 * KEPT_BYTES_MAX)
    except OutOfMemoryError as exc:
        pytest.skip(str(exc))
    before = shared.used_bytes
    buffer = leave(instance, request_of, allocating, KEPT_BYTES_MAX + 1)
    where = buffer.address
    assert shared.used_bytes > before + KEPT_BYTES_MAX
    del buffer
    assert shared.used_bytes == before
    assert leave(instance, request_of, allocating, KEPT_BYTES_MAX + 1).address == where


def test_full_region(instance, request_of, shared):
    """An output that finds no room in it is the process's own."""
    allocating = open_region(shared, size=2 * LARGE)
    buffers = [leave(instance, request_of, allocating, LARGE) for _ in range(3)]
    assert [bool(each.address) for each in buffers] == [True, True, False]
    del buffers
    gc.collect()
    assert leave(instance, request_of, allocating, LARGE).address


@pytest.mark.parametrize(("used", "shares"), [(FULL - LARGE, True), (FULL - LARGE + 1, False)])
def test_limit_of_memory(instance, request_of, shared, tmp_path, used, shares):
    """An output that would leave too little memory in a cgroup is the process's own. What can be freed is no use."""
    files = {"memory.max": LIMIT, "memory.current": used + 5000, "memory.stat": "anon 7\ninactive_file 5000\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    paths = [str(tmp_path / name) for name in files]
    unlimited = str(tmp_path / "nothing"), *paths[1:], ()
    allocating = open_region(shared, cgroups=[unlimited, (*paths, ("inactive_file", "active_file"))])
    assert bool(leave(instance, request_of, allocating, LARGE).address) is shares


def test_region_that_is_gone(native, request_of):
    """An output outlives the region of Python, and what native code has of it."""
    instance = native("responses.cc", outputs=OUTPUTS, decoupled=False)
    shared = create_region("a test")
    allocating = open_region(shared)
    (buffer,) = echo(instance, request_of, allocating, b"x" * LARGE)
    shared.close()
    (another,) = echo(instance, request_of, allocating, b"y" * LARGE)
    del allocating
    assert bytes(buffer) == b"x" * LARGE
    assert bytes(another) == b"y" * LARGE


def test_outputs_after_the_release(native, request_of, allocating):
    """Responses from a factory, after their request was released, lie in its region; so do those of other threads."""
    instance = native("flow.cc", outputs=("OUT", "PAD"))
    numbers = b"".join(number.to_bytes(8, "little") for number in (3, LARGE, 0))
    (job,) = instance.run(request_of("flood", ("IN", "INT64", [3], numbers), region=allocating))
    pads = [buffer for _, _, outputs, _ in job.responses if outputs for name, *_, buffer in outputs if name == "PAD"]
    assert len({pad.address for pad in pads} - {0}) == 3


def test_what_is_no_region(instance, request_of):
    """A region is made of a descriptor that can be mapped, and of cgroups."""
    from pyruntime.runtime.native import _triton

    with pytest.raises(OSError, match="Bad file descriptor"):
        _triton.OutputRegion(-1, 4096, 0, ())
    with open(os.devnull) as file, pytest.raises(OSError, match=r"No such device|Permission denied"):
        _triton.OutputRegion(file.fileno(), 4096, 0, ())
    with pytest.raises(TypeError):
        _triton.OutputRegion(0, 4096, 0, ["no cgroup"])
    (buffer,) = echo(instance, request_of, {}, b"x" * LARGE)  # the places of a request to a stub
    assert buffer.address == 0
