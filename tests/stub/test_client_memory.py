# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The reads and writes of a stub in the memory of clients."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pyruntime.runtime.regions import ClientRegion
from pyruntime.stub.pb_utils import InferenceRequest, InferenceResponse, Tensor
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import LARGE_BYTES, PAGE_BYTES
from pyruntime.utils.errors import Code, LocalError
from pyruntime.utils.messages import NO_SLOT, OK
from pyruntime.utils.request_codec import WireRequest

NAME = "a client's memory of a test"
SIZE = 4 * LARGE_BYTES
LARGE = np.arange(LARGE_BYTES, dtype=np.uint32).astype(np.uint8)
OUTPUTS = {"A", "B", "C"}


class Client:
    """The memory of a client; `contents` is the client's own view of it."""

    def __init__(self):
        self.region = ClientRegion(os.memfd_create(NAME))
        self.resize(SIZE)

    def resize(self, size):
        os.ftruncate(self.region.fileno(), size)

    def address(self, offset):
        return address(self.region.number, offset)

    def put(self, offset, array):
        os.pwrite(self.region.fileno(), array.tobytes(), offset)

    def get(self, offset, size):
        return np.frombuffer(os.pread(self.region.fileno(), size, offset), np.uint8)


@pytest.fixture
def client(granting):
    made = Client()
    granting(made.region)
    yield made
    made.region.close()


@pytest.fixture
def responses(new_region):
    return new_region()


@pytest.fixture
def writer(responses):
    return ResponseWriter(responses, 1 << 20, "m", OUTPUTS)


def request_of(regions, inputs=(), places=None):
    """A request with these inputs, (offset, size) or address and size each, and these places."""
    tensors = [[f"IN{number}", "UINT8", [size], at, size, 0, 0] for number, (at, size) in enumerate(inputs)]
    refs = {name: [*place, 0, 0] for name, place in (places or {}).items()}
    wire = WireRequest("", 0, 0, 0, None, "", tensors, "", refs)
    return InferenceRequest._from_wire(regions, wire, OUTPUTS, 7)


def mapped():
    """Whether this process maps a client's memory."""
    return NAME in Path("/proc/self/maps").read_text()


class TestInputs:
    @pytest.mark.parametrize("size", [1, len(LARGE)])
    def test_where_they_are(self, regions, client, size):
        """Inputs are read at any offset of the client's memory; writes of the model are not visible to the client."""
        client.put(3, LARGE)
        array = request_of(regions, [(client.address(3), size)]).inputs()[0].as_numpy()
        assert_array_equal(array, LARGE[:size])
        array[:] = 7
        assert_array_equal(client.get(3, size), LARGE[:size])

    def test_large_ones_are_mapped(self, regions, client):
        """Large inputs are mapped as long as they are used."""
        tensor = request_of(regions, [(client.address(0), len(LARGE))]).inputs()[0]
        assert not mapped()
        tensor.as_numpy()
        assert mapped()
        del tensor
        assert not mapped()

    def test_beside_others(self, regions, client):
        """Some inputs of a request may have come with it."""
        client.put(0, LARGE)
        regions.requests.view[64:68] = b"abcd"
        ours, theirs = request_of(regions, [(64, 4), (client.address(8), 4)]).inputs()
        assert ours.as_numpy().tobytes() == b"abcd"
        assert_array_equal(theirs.as_numpy(), LARGE[8:12])

    @pytest.mark.parametrize("size", [10, len(LARGE)])
    def test_of_an_object_that_has_shrunk(self, regions, client, size):
        """That is an error, and no bus error."""
        request = request_of(regions, [(client.address(0), size)])
        client.resize(5)
        with pytest.raises(LocalError, match="smaller than it was"):
            request.inputs()[0].as_numpy()

    def test_are_taken_from_the_socket(self, regions, client, granting):
        """A request that arrives takes its regions, whether or not the model looks: the socket holds only so many."""
        others = [Client() for _ in range(3)]
        granting(*[other.region for other in others])
        places = {"A": [others[2].address(0), 1]}
        request_of(regions, [(others[0].address(0), 1)], places)
        granting.theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            granting.theirs.recv(1)
        for other in others:
            other.region.close()


class TestKeep:
    def test_large(self, regions, client):
        """From then on the client's memory and the model's array have nothing to do with each other."""
        client.put(5, LARGE)
        request = request_of(regions, [(client.address(5), len(LARGE))])
        array = request.inputs()[0].as_numpy()
        array[0] = 77
        view = array[1:]
        request._outputs.memory.keep()
        client.put(0, np.zeros(SIZE, np.uint8))
        assert array[0] == 77
        assert_array_equal(view, LARGE[1:])
        assert not mapped()
        client.resize(0)
        assert_array_equal(view, LARGE[1:])
        view[:] = 3
        assert (array[1:] == 3).all()

    @pytest.mark.parametrize("size", [4, len(LARGE)])
    def test_what_was_not_read_yet(self, regions, client, size):
        """The model may still ask for it."""
        client.put(0, LARGE)
        request = request_of(regions, [(client.address(0), size), (64, 4)])
        request._outputs.memory.keep()
        client.put(0, np.zeros(SIZE, np.uint8))
        assert_array_equal(request.inputs()[0].as_numpy(), LARGE[:size])
        assert request.inputs()[1]._array is None  # its memory is kept by other means

    def test_what_is_gone(self, regions, client):
        """`keep` maps nothing for arrays and requests that no longer exist."""
        request = request_of(regions, [(client.address(0), len(LARGE))])
        memory = request._outputs.memory
        request.inputs()[0].as_numpy()
        del request
        assert not mapped()
        memory.keep()
        assert not mapped()

    def test_what_cannot_be_read(self, regions, client):
        """The object has shrunk: the model sees that when it asks."""
        request = request_of(regions, [(client.address(0), 100)])
        client.resize(50)
        request._outputs.memory.keep()
        with pytest.raises(LocalError):
            request.inputs()[0].as_numpy()

    def test_no_memory(self, regions, client):
        """Without memory for a copy, the array is empty and `keep` raises."""
        request = request_of(regions, [(client.address(0), SIZE)])
        array = request.inputs()[0].as_numpy()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (used + SIZE // 2, hard))
        try:
            with pytest.raises(MemoryError, match=f"no memory for a copy of {SIZE} bytes"):
                request._outputs.memory.keep()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert array.sum() == 0


def answer(writer, request, *tensors):
    return writer.write(InferenceResponse(list(tensors)), request._outputs)


class TestOutputs:
    @pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int16, np.float16, np.float32, np.float64, np.uint64])
    @pytest.mark.parametrize("count", [1, LARGE_BYTES])
    def test_in_place(self, writer, regions, client, dtype, count):
        """An output goes where the client wants it, and nowhere else: no slot is taken for it."""
        array = (np.arange(count) % 251).astype(dtype)
        if array.nbytes > SIZE - 3:
            client.resize(array.nbytes + SIZE)
        end = array.nbytes + 3
        client.put(0, np.full(end + 5, 9, np.uint8))
        request = request_of(regions, places={"A": [client.address(3), array.nbytes + 5]})
        response = answer(writer, request, Tensor("A", array))
        name = Tensor("A", array)._datatype
        assert response == (OK, "", NO_SLOT, [("A", name, [count], client.address(3), array.nbytes, 0, 0)], "")
        assert client.get(3, array.nbytes).tobytes() == array.tobytes()
        assert client.get(0, 3).tobytes() == b"\t\t\t"
        assert client.get(end, 5).tobytes() == b"\t" * 5

    def test_of_any_layout(self, writer, regions, client):
        """An array that is not in C order is written in C order."""
        array = np.arange(512 * 512, dtype=np.int32).reshape(512, 512).T
        client.resize(array.nbytes)
        answer(writer, request_of(regions, places={"A": [client.address(0), array.nbytes]}), Tensor("A", array))
        assert client.get(0, array.nbytes).tobytes() == array.tobytes()

    @pytest.mark.parametrize("count", [1, LARGE_BYTES])
    def test_of_bytes(self, writer, regions, client, count):
        """In the encoded form."""
        array = np.array([b"ab"] * count, object)
        client.resize(6 * count)
        response = answer(writer, request_of(regions, places={"A": [client.address(0), 6 * count]}), Tensor("A", array))
        assert response[3] == [("A", "BYTES", [count], client.address(0), 6 * count, 0, 0)]
        assert client.get(0, 6 * count).tobytes() == b"\2\0\0\0ab" * count

    def test_without_contents(self, writer, regions, client):
        """An output without elements writes nothing."""
        request = request_of(regions, places={"A": [client.address(8), 4]})
        response = answer(writer, request, Tensor("A", np.zeros((0,), np.int8)))
        assert response == (OK, "", NO_SLOT, [("A", "INT8", [0], client.address(8), 0, 0, 0)], "")

    def test_beside_others(self, writer, responses, regions, client):
        """Those that have no place lie in the stub's own region, in the model's order; those not wanted nowhere."""
        request = InferenceRequest._from_wire(
            regions, WireRequest("", 0, 0, 0, ["A", "B"], "", [], "", {"B": [client.address(0), 4, 0, 0]}), OUTPUTS, 7
        )
        a, b = np.arange(3, dtype=np.uint8), np.arange(4, dtype=np.uint8)
        code, _, slot, tensors, _ = answer(writer, request, Tensor("A", a), Tensor("B", b), Tensor("C", a))
        assert (code, [tensor[0] for tensor in tensors]) == (OK, ["A", "B"])
        assert responses.view[tensors[0][3] : tensors[0][3] + 3].tobytes() == a.tobytes()
        assert tensors[1][3] == client.address(0)
        writer.free([slot])

    @pytest.mark.parametrize("size", [4, LARGE_BYTES])
    def test_too_large(self, writer, regions, client, size):
        """The response is an error in Triton's words, and nothing at all is written."""
        client.put(0, LARGE)
        places = {"A": [client.address(0), 2], "B": [client.address(8), size - 1]}
        a, b = Tensor("A", np.zeros(2, np.uint8)), Tensor("B", np.zeros(size, np.uint8))
        response = answer(writer, request_of(regions, places=places), a, b)
        assert response[:2] == (
            Code.INTERNAL,
            f"shared memory size specified with the request for output 'B' ({size - 1} bytes) should be at least "
            f"{size} bytes to hold the results",
        )
        assert_array_equal(client.get(0, len(LARGE)), LARGE)

    @pytest.mark.parametrize("size", [4, LARGE_BYTES])
    def test_to_an_object_that_has_shrunk(self, writer, regions, client, size):
        """It does not grow again, and is no bus error."""
        request = request_of(regions, places={"A": [client.address(0), size]})
        answer(writer, request, Tensor("A", np.zeros(size, np.uint8)))
        client.resize(size - 1)
        response = answer(writer, request, Tensor("A", np.zeros(size, np.uint8)))
        assert response[0] == Code.UNAVAILABLE
        assert "a response cannot be put in its place: a region of shared memory is smaller" in response[1]
        assert client.region.size() == size - 1

    @pytest.mark.parametrize("has_written", [False, True])
    def test_to_an_object_that_shrinks_meanwhile(self, writer, regions, client, monkeypatch, has_written):
        """It shrinks after its size was looked at: no bus error, no success, and a later response has its place."""
        request = request_of(regions, places={"A": [client.address(0), SIZE // 2]})
        tensor = Tensor("A", np.ones(SIZE // 2, np.uint8))
        if has_written:
            answer(writer, request, tensor)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", lambda *_: client.resize(PAGE_BYTES))
            response = answer(writer, request, tensor)
        assert response[0] == Code.UNAVAILABLE
        assert "a response cannot be put in its place: a region of shared memory is smaller" in response[1]
        assert client.region.size() == PAGE_BYTES
        client.resize(SIZE)
        assert answer(writer, request, tensor)[0] == OK
        assert client.get(0, SIZE // 2).all()

    @pytest.mark.parametrize("wanted", ["place", "region"])
    @pytest.mark.parametrize("keeps", [False, True])
    def test_of_inputs_that_have_shrunk(self, writer, responses, regions, client, wanted, keeps):
        """Outputs that were computed of missing inputs are not sent, also if the model has let go of these inputs."""
        client.put(0, LARGE)
        places = {"A": [client.address(SIZE // 2), 8]} if wanted == "place" else None
        request = request_of(regions, [(client.address(0), len(LARGE))], places)
        array = request.inputs()[0].as_numpy()
        assert not request._outputs.memory.has_shrunk()
        client.resize(PAGE_BYTES)
        total = array.sum(keepdims=True)
        assert total.item() == LARGE[:PAGE_BYTES].sum()
        client.resize(SIZE)
        if not keeps:
            request._inputs = array = None
            assert not mapped()
        response = answer(writer, request, Tensor("A", total))
        assert response[:3] == (
            Code.UNAVAILABLE,
            "an input cannot be read: a region of shared memory is smaller than it was when it was registered",
            NO_SLOT,
        )
        assert writer._arena.live == 0

    @pytest.mark.parametrize(("call", "size"), [("pwrite", 4), ("posix_fallocate", LARGE_BYTES)])
    def test_no_memory(self, writer, regions, client, monkeypatch, call, size):
        """Writing fails if the client's object is larger than the available memory."""

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, call, fail)
        request = request_of(regions, places={"A": [client.address(0), size]})
        response = answer(writer, request, Tensor("A", np.zeros(size, np.uint8)))
        assert response[0] == Code.UNAVAILABLE
        assert response[1].endswith("shared memory cannot be written: No space left on device")

    def test_in_an_object_that_grows(self, writer, regions, client):
        """A part that was registered later may lie behind all that was written to so far."""
        for offset in (0, SIZE):
            client.resize(offset + SIZE)
            answer(writer, request_of(regions, places={"A": [client.address(offset), SIZE]}), Tensor("A", LARGE))
            assert_array_equal(client.get(offset, len(LARGE)), LARGE)

    def test_where_inputs_lie(self, writer, regions, client):
        """Inputs that are handed back, each in the other's place, do not get mixed up."""
        one, two = LARGE, LARGE[::-1].copy()
        client.put(0, one)
        client.put(len(one), two)
        first, second = (client.address(0), len(one)), (client.address(len(one)), len(two))
        request = request_of(regions, [first, second], {"A": list(first), "B": list(second)})
        a, b = [tensor.as_numpy() for tensor in request.inputs()]
        answer(writer, request, Tensor("A", b), Tensor("B", a))
        assert_array_equal(client.get(0, len(one)), two)
        assert_array_equal(client.get(len(one), len(two)), one)

    def test_is_forgotten(self, writer, regions, client):
        """When the host says so: no mapping stays."""
        request = request_of(regions, places={"A": [client.address(0), SIZE]})
        answer(writer, request, Tensor("A", LARGE))
        assert mapped()
        regions.unmap(client.region.number)
        assert not mapped()
