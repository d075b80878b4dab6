# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that clients register, the parts that requests may refer to, and refusals with Triton's messages."""

import asyncio
import os
import resource
from pathlib import Path
from uuid import uuid4

import posix_ipc
import pytest

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.memory import clients
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.regions import REGION_BYTES_MAX
from tests.own_descriptors import own_descriptors

SIZE = 4096
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
NOWHERE = 2**63 - 1


class Object:
    """A client's shared memory, by the name of its key."""

    def __init__(self, size=SIZE):
        self.key = f"/pyruntime_test_{uuid4().hex}"
        self.path = Path("/dev/shm" + self.key)
        self.resize(size)

    def resize(self, size):
        with self.path.open("ab") as file:
            file.truncate(size)


@pytest.fixture
def an_object():
    made = []

    def make(size=SIZE):
        made.append(Object(size))
        return made[-1]

    yield make
    for each in made:
        each.path.unlink(missing_ok=True)


@pytest.fixture
def memory():
    made = ClientMemory(allowed=True)
    yield made
    unregister(made)


def unregister(memory, *name):
    """Remove a region, or all of them, and close them."""
    for _ in memory.unregister(*name):
        pass


def refusal(code, function, *arguments):
    with pytest.raises(InferenceError) as caught:
        function(*arguments)
    assert caught.value.code is code
    return caught.value.message


def registered(memory, made, name="r", offset=0, size=SIZE):
    memory.register(name, made.key, offset, size)
    return made


class TestRegister:
    def test_status(self, memory, an_object):
        """The status of one region, or of all of them."""
        one, two = an_object(), an_object()
        memory.register("one", one.key, 0, SIZE)
        memory.register("two", two.key, 8, 16)
        assert [(row.name, row.key, row.offset, row.byte_size) for row in memory.status()] == [
            ("one", one.key, 0, SIZE),
            ("two", two.key, 8, 16),
        ]
        assert [row.name for row in memory.status("two")] == ["two"]
        message = refusal(Code.NOT_FOUND, memory.status, "three")
        assert message == "Unable to find system shared memory region: 'three'"

    def test_key_without_a_slash(self, memory, an_object):
        """Keys are those of shm_open, which does not ask for the slash."""
        made = an_object()
        memory.register("r", made.key[1:], 0, SIZE)
        assert memory.status("r")[0].key == made.key[1:]

    @pytest.mark.parametrize("key", ["/a/b", "/../shm/x", "/nobody_made_it", "/" + "x" * 300, "/a\0b", "/\udc80"])
    def test_key_of_nothing(self, memory, key):
        """There is no object under the key."""
        message = refusal(Code.INTERNAL, memory.register, "r", key, 0, 1)
        assert message == f"Unable to open shared memory region: '{key}'"
        assert memory.status() == []

    @pytest.mark.parametrize("key", ["", "/", "///"])
    def test_key_without_a_name(self, memory, key):
        """A key of slashes alone is refused."""
        message = refusal(Code.INVALID_ARG, memory.register, "r", key, 0, 1)
        assert message == f"cannot register shared memory region 'r' - invalid shm key '{key}'"

    def test_what_is_no_memory(self, memory):
        """A pipe, for instance, has no size and cannot be mapped."""
        path = Path(f"/dev/shm/pyruntime_test_{uuid4().hex}")
        os.mkfifo(path)
        before = own_descriptors()
        try:
            assert "Unable to open" in refusal(Code.INTERNAL, memory.register, "r", "/" + path.name, 0, 1)
        finally:
            path.unlink()
        assert own_descriptors() == before

    @pytest.mark.parametrize(
        "key",
        [
            "triton_python_backend_shm_region_1",
            "/triton_python_backend_shm_region_1",
            "//triton_python_backend_shm_region_",
        ],
    )
    def test_reserved_key(self, memory, key):
        """The names of Triton's own regions."""
        message = refusal(Code.INVALID_ARG, memory.register, "r", key, 0, 1)
        assert message == (
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
            "'triton_python_backend_shm_region_'"
        )

    @pytest.mark.parametrize(
        ("offset", "size"),
        [(0, 0), (0, SIZE + 1), (1, SIZE), (SIZE, 1), (SIZE, 0), (-1, 1), (0, -1), (2**64 - 1, 1), (4, 2**64 - 1)],
    )
    def test_part_that_is_not_there(self, memory, an_object, offset, size):
        """A part that the object does not have is refused, for any numbers, and no descriptor stays open."""
        made, before = an_object(), own_descriptors()
        message = refusal(Code.INVALID_ARG, memory.register, "r", made.key, offset, size)
        assert message == "failed to register shared memory region 'r': invalid args"
        assert own_descriptors() == before

    def test_beyond_what_has_an_address(self, memory, an_object):
        """An object may be larger than a region can be; only its beginning can be used."""
        made = an_object(REGION_BYTES_MAX + SIZE)
        memory.register("r", made.key, REGION_BYTES_MAX - SIZE, SIZE)
        assert "invalid args" in refusal(Code.INVALID_ARG, memory.register, "s", made.key, REGION_BYTES_MAX, SIZE)

    def test_name_that_is_taken(self, memory, an_object):
        """A name stands for one region, until it is unregistered."""
        made = registered(memory, an_object())
        message = refusal(Code.ALREADY_EXISTS, memory.register, "r", made.key, 0, SIZE)
        assert message == "shared memory region 'r' already in manager"
        unregister(memory, "r")
        memory.register("r", made.key, 0, SIZE)

    def test_one_object_under_many_names(self, memory, an_object):
        """It is opened once: descriptors are few."""
        made, before = an_object(), own_descriptors()
        for number in range(10):
            memory.register(str(number), made.key, number, 1)
        assert own_descriptors() == before + 1
        assert len({row.memory.number for row in memory.status()}) == 1
        unregister(memory, "0")
        assert memory.input("X", "UINT8", [1], "1", 0, 1).client is not None
        unregister(memory)
        assert own_descriptors() == before

    def test_key_that_was_made_anew(self, memory, an_object):
        """A name stands for the object that was there, and a new name for the new one."""
        made = registered(memory, an_object(), "old")
        made.path.unlink()
        made.resize(2 * SIZE)
        memory.register("new", made.key, 0, 2 * SIZE)
        old, new = memory.status()
        assert old.memory.number != new.memory.number
        assert (old.memory.size(), new.memory.size()) == (SIZE, 2 * SIZE)

    def test_too_many_names(self, memory, an_object, monkeypatch):
        """The number of regions is limited."""
        monkeypatch.setattr(clients, "REGIONS_MAX", 2)
        made = registered(memory, an_object(), "a")
        memory.register("b", made.key, 0, 1)
        message = refusal(Code.UNAVAILABLE, memory.register, "c", made.key, 0, 1)
        assert message == "more than 2 shared memory regions are registered"

    def test_too_many_objects(self, an_object, monkeypatch):
        """Objects leave descriptors for everybody else."""
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (2, 2))
        memory, before = ClientMemory(allowed=True), own_descriptors()
        made = registered(memory, an_object(), "a")
        memory.register("b", made.key, 0, 1)
        message = refusal(Code.UNAVAILABLE, memory.register, "c", an_object().key, 0, 1)
        assert message == "more than 1 shared memory objects are registered"
        unregister(memory)
        assert own_descriptors() == before

    def test_no_descriptor_left(self, memory, an_object, monkeypatch):
        """That it cannot be opened is all that the client has to know."""

        def fail(key):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(posix_ipc, "SharedMemory", fail)
        assert refusal(Code.INTERNAL, memory.register, "r", "/k", 0, 1) == "Unable to open shared memory region: '/k'"


class TestUnregister:
    def test_one_after_the_other(self, memory, an_object):
        """They are gone from the list at once; each part of the result closes one, as there may be thousands."""
        for name in ("a", "b", "c"):
            registered(memory, an_object(), name)
        objects = [row.memory for row in memory.status()]
        closing = memory.unregister()
        assert memory.status() == []
        for closed in range(3):
            assert [not each.is_closed for each in objects] == [number >= closed for number in range(3)]
            next(closing)
        assert all(each.is_closed for each in objects)
        assert list(closing) == []

    def test_used(self, memory, an_object):
        """A region that requests use stays listed and usable, until the last of them ends."""
        before = own_descriptors()
        made = registered(memory, an_object())
        used = memory.output("r", 0, 8).contents.memory
        used.count_on()
        unregister(memory, "r")
        assert [row.name for row in memory.status()] == ["r"]
        assert "already in manager" in refusal(Code.ALREADY_EXISTS, memory.register, "r", made.key, 0, SIZE)
        memory.input("X", "INT8", [8], "r", 0, 8).client.memory.count_on()
        used.close()
        assert [row.name for row in memory.status("r")] == ["r"]
        used.close()
        assert memory.status() == []
        assert own_descriptors() == before

    def test_used_names(self, memory, an_object):
        """The names of one object that were unregistered go together; others stay."""
        made, before = an_object(), own_descriptors()
        for name in ("a", "b", "c"):
            memory.register(name, made.key, 0, SIZE)
        used = memory.output("a", 0, 8).contents.memory
        used.count_on()
        unregister(memory, "a")
        unregister(memory, "b")
        used.close()
        assert [row.name for row in memory.status()] == ["c"]
        unregister(memory)
        assert own_descriptors() == before

    def test_unknown(self, memory, an_object):
        """Unregistering an unknown region has no effect."""
        registered(memory, an_object())
        unregister(memory, "s")
        assert len(memory.status()) == 1

    def test_all(self, memory, an_object):
        """Without a name all of them go, and leave nothing."""
        before = own_descriptors()
        registered(memory, an_object(), "a")
        registered(memory, an_object(), "b")
        unregister(memory)
        assert memory.status() == []
        assert own_descriptors() == before


class TestDisabled:
    def test_register_and_unregister(self, an_object):
        """Not without --allow-client-shm."""
        memory, made = ClientMemory(allowed=False), an_object()
        for function, *arguments in (
            (memory.register, "r", made.key, 0, SIZE),
            (memory.register, "r", "triton_python_backend_shm_region_1", 0, SIZE),
            (memory.unregister,),
            (memory.unregister, "r"),
            (memory.register_cuda, "r", bytes(64), 0, SIZE),
            (memory.unregister_cuda,),
        ):
            assert refusal(Code.UNSUPPORTED, function, *arguments) == DISABLED

    def test_status(self):
        """There is nothing, and that can be asked."""
        memory = ClientMemory(allowed=False)
        assert memory.status() == []
        assert memory.status_cuda() == []

    def test_tensors(self):
        """A request that refers to a region gets the reason why there are none."""
        memory = ClientMemory(allowed=False)
        assert refusal(Code.UNSUPPORTED, memory.input, "X", "INT8", [1], "r", 0, 1) == DISABLED
        assert refusal(Code.UNSUPPORTED, memory.output, "r", 0, 1) == DISABLED


class TestCuda:
    def test_is_refused(self, an_object):
        """Every handle is refused, because there are no GPUs; names must not be those of other regions."""
        memory = ClientMemory(allowed=True, brokers=Brokers(lambda: []))
        message = refusal(Code.INVALID_ARG, asyncio.run, memory.register_cuda("g", bytes(64), 0, SIZE))
        assert message == "failed to register CUDA shared memory region: 'g', GPUs not supported"
        message = refusal(Code.INVALID_ARG, memory.register_cuda, "g", bytes(63), 0, SIZE)
        assert message == "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
        message = refusal(Code.INVALID_ARG, memory.register_cuda, "", b"", 0, SIZE)
        assert message == "failed to register shared memory region '': invalid args"
        registered(memory, an_object(), "g")
        assert refusal(Code.NOT_FOUND, memory.status_cuda, "g") == (
            "The region named 'g' is registered as system shared memory, not CUDA shared memory"
        )
        message = refusal(Code.ALREADY_EXISTS, memory.register_cuda, "g", bytes(64), 0, SIZE)
        assert message == "shared memory region 'g' already in manager"
        unregister(memory)

    def test_there_is_none(self, memory):
        """There are no CUDA regions; unregistering them has no effect."""
        for name in ("", "g"):
            asyncio.run(memory.unregister_cuda(name))
        assert memory.status_cuda() == []
        message = refusal(Code.NOT_FOUND, memory.status_cuda, "g")
        assert message == "Unable to find cuda shared memory region: 'g'"


class TestTensors:
    def test_input_is_an_address(self, memory, an_object):
        """Its contents stay where they are: in the object, at the offset of the region and the one in it."""
        registered(memory, an_object(), offset=64, size=128)
        tensor = memory.input("X", "FP32", [2], "r", 16, 8)
        (row,) = memory.status()
        assert split(tensor.offset) == (row.memory.number, 80)
        assert (tensor.byte_size, bytes(tensor.data)) == (8, b"")
        assert tensor.client.memory is row.memory

    def test_bytes_are_read(self, memory, an_object):
        """BYTES are copied at once, because their elements are checked; later writes of the client have no effect."""
        made = registered(memory, an_object(), offset=64, size=128)
        made.path.write_bytes(bytes(80) + b"\1\0\0\0a".ljust(SIZE - 80))
        tensor = memory.input("X", "BYTES", [1], "r", 16, 5)
        made.path.write_bytes(bytes(SIZE))
        assert (tensor.data, tensor.offset, tensor.client) == (b"\1\0\0\0a", -1, None)

    def test_too_many_bytes_to_read(self, an_object):
        """An object of any size costs nothing to make, and would take the server long to look at."""
        memory, made = ClientMemory(True, 100), an_object(1 << 40)
        memory.register("r", made.key, 0, 1 << 35)
        message = refusal(Code.INVALID_ARG, memory.input, "X", "BYTES", [1], "r", 0, 101)
        assert message == "input 'X' has 101 bytes of strings, expected at most 100"
        assert len(memory.input("X", "BYTES", [1], "r", 0, 100).data) == 100
        assert memory.input("X", "INT8", [101], "r", 0, 101).byte_size == 101
        unregister(memory)

    def test_output_is_a_place(self, memory, an_object):
        """The client knows it by the region, the stub by its address."""
        registered(memory, an_object(), offset=64, size=128)
        place = memory.output("r", 16, 8)
        assert (place.region, place.offset, place.byte_size) == ("r", 16, 8)
        assert split(place.contents.address) == (memory.status()[0].memory.number, 80)
        assert place.contents.size == 8
        assert (place.filled(4).byte_size, place.filled(4).contents.size) == (4, 8)

    @pytest.mark.parametrize(
        ("offset", "size", "message"),
        [
            (128, 1, "Invalid offset for shared memory region: 'r'"),
            (-1, 1, "Invalid offset for shared memory region: 'r'"),
            (NOWHERE, 1, "Invalid offset for shared memory region: 'r'"),
            (0, 129, "Invalid offset + byte size for shared memory region: 'r'"),
            (127, 2, "Invalid offset + byte size for shared memory region: 'r'"),
            (1, NOWHERE, "Invalid offset + byte size for shared memory region: 'r'"),
            (
                2,
                2**64 - 1,
                f"Integer overflow detected: byte_size ({2**64 - 1}) + offset (2) exceeds maximum value "
                f"({2**64 - 1}) for region 'r'",
            ),
            (0, 0, "Invalid offset + byte size for shared memory region: 'r'"),
            (0, -1, "Invalid offset + byte size for shared memory region: 'r'"),
        ],
    )
    def test_out_of_range(self, memory, an_object, offset, size, message):
        """A request cannot refer to memory outside of the region, though the memory is the client's own."""
        registered(memory, an_object(), offset=64, size=128)
        assert refusal(Code.INVALID_ARG, memory.input, "X", "INT8", [1], "r", offset, size) == message
        assert refusal(Code.INVALID_ARG, memory.input, "X", "BYTES", [1], "r", offset, size) == message
        assert refusal(Code.INVALID_ARG, memory.output, "r", offset, size) == message

    def test_unknown_region(self, memory):
        """It was never registered, or is not any longer."""
        message = "Unable to find shared memory region: 's'"
        assert refusal(Code.NOT_FOUND, memory.input, "X", "INT8", [1], "s", 0, 1) == message
        assert refusal(Code.NOT_FOUND, memory.output, "s", 0, 1) == message

    def test_object_that_has_shrunk(self, memory, an_object):
        """Its size is asked for whenever it is used: to look behind its end would be a bus error."""
        made = registered(memory, an_object())
        made.resize(100)
        memory.input("X", "INT8", [100], "r", 0, 100)
        for function, *arguments in ((memory.input, "X", "INT8", [101]), (memory.output,)):
            message = refusal(Code.INVALID_ARG, function, *arguments, "r", 0, 101)
            assert message == "Invalid offset + byte size for shared memory region: 'r'"
        made.resize(SIZE)
        memory.output("r", 0, SIZE)
