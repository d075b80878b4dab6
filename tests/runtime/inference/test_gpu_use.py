# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs by requests: copies are complete before what follows, in order, and memory is released once."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.execution.job import Job, tensor_refs
from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.inference.gpu_use import GpuUse
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.regions import GpuRegion, create_region
from pyruntime.runtime.requests.types import (
    GpuContents,
    GpuPlace,
    InferRequest,
    InferResponse,
    InputTensor,
    OnGpu,
    OutputTensor,
)
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import BARE_BYTES_MIN
from pyruntime.utils.errors import InferenceError, OutOfMemoryError
from pyruntime.utils.gpu.driver import GpuHandleError, GpuProperties
from pyruntime.utils.request_codec import MEMORY_GPU

from ..event_loops import settle

GPU = GpuProperties(1, "GPU-1", "G", (8, 0), 100, 100, False)


class Memory:
    """Memory on GPU 1: copies end when the test says so."""

    device_id = 1

    def __init__(self, contents=b""):
        self.region = GpuRegion(GPU, bytes(64), len(contents), b"", self)
        self.contents = bytearray(contents)
        self.counting = 0
        self.copies = []
        self.begun = asyncio.Event()

    def count_on(self):
        self.counting += 1

    def close(self):
        self.counting -= 1

    def for_stubs(self):
        return self.region

    async def _end(self):
        self.copies.append(asyncio.Future())
        self.begun.set()
        await self.copies[-1]

    async def read(self, at, size, region, offset):
        await self._end()
        region.view[offset : offset + size] = self.contents[at : at + size]

    async def fetch(self, region, at, size, target, offset):
        await self.read(at, size, target, offset)

    async def write(self, at, size, region, offset):
        await self._end()
        self.contents[at : at + size] = region.view[offset : offset + size]


class Leases:
    """Memory on GPU 2. It can be reached from GPU 1, and the other way round."""

    def __init__(self):
        self.region = GpuRegion(GPU._replace(ordinal=2), bytes(64), 1000, b"", self)
        self.contents = bytearray(1000)
        self.refusal = None

    def reaches(self, source, target):
        return {source, target} == {1, 2}

    async def lease_on(self, ordinal, size):
        return self.region

    async def pull(self, source, pieces, target):
        if self.refusal is not None:
            raise self.refusal
        for offset, size, new_offset in pieces:
            target.lessor.contents[new_offset : new_offset + size] = source.lessor.contents[offset : offset + size]

    async def fetch(self, region, at, size, target, offset):
        target.view[offset : offset + size] = self.contents[at : at + size]

    def unused(self, region):
        """Nobody has it open."""


class Model:
    """As much of a model version as a fetch uses."""

    def __init__(self):
        self.memory = RequestMemory("m", 0, 4096)
        self.spec = SimpleNamespace(inputs={"A": None, "B": None})
        self.expected = 0
        self.on_gpus = None

    def check_serving(self):
        """It serves."""

    def expect(self):
        self.expected += 1

    def arrived(self):
        self.expected -= 1


@pytest.fixture
def model():
    made = Model()
    yield made
    made.memory.close()


@pytest.fixture
def region(new_region):
    return new_region(4096)


def on_gpu(name, memory, offset, size):
    return InputTensor(name, "UINT8", [size], b"", gpu=GpuContents(memory, offset, size))


def place(memory, size, offset=0):
    return GpuPlace("r", offset, size, GpuContents(memory, offset, size))


def run(check, request, leases=None):
    """Run `check` with the use of a request and the list of what its client got. Nothing is counted on after it."""

    async def within():
        async with asyncio.TaskGroup() as tasks:
            got = []
            peers = GpuPeers(Leases() if leases is None else leases, tasks)
            use = GpuUse(request, lambda outcome, final: got.append((outcome, final)), tasks, peers)
            await check(use, got)

    asyncio.run(within())


async def fetched(use, request, model, memory):
    """Fetch the inputs, and complete all copies that this begins."""
    fetch = asyncio.ensure_future(use.fetch(request, model))
    await settle()
    for copy in memory.copies:
        copy.set_result(None)
    await fetch


def test_fetch(model):
    """Inputs are in the request region, aligned, when all copies have ended; the model does not stop before."""
    memory = Memory(b"0123456789")
    request = InferRequest("m", inputs=[on_gpu("A", memory, 2, 3), on_gpu("B", memory, 5, 5)], uses_gpu=True)

    async def check(use, got):
        assert memory.counting == 2
        fetch = asyncio.ensure_future(use.fetch(request, model))
        await settle()
        assert (model.expected, fetch.done()) == (1, False)
        memory.copies[1].set_result(None)
        await settle()
        assert not fetch.done()
        memory.copies[0].set_result(None)
        await fetch
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"234", b"56789"]
        assert [tensor.offset % 64 for tensor in request.inputs] == [0, 0]
        assert model.expected == 0
        for tensor in request.inputs:
            tensor.data = b""
        request.free()
        use.end()
        assert memory.counting == 0

    run(check, request)
    assert model.memory.live == 0


def test_model_is_unloaded_meanwhile():
    """A copy that ends after its model harms nothing: its memory stays until the request is freed."""
    model, memory = Model(), Memory(b"0123456789")
    request = InferRequest("m", inputs=[on_gpu("A", memory, 2, 3)], uses_gpu=True)

    async def check(use, got):
        fetch = asyncio.ensure_future(use.fetch(request, model))
        await settle()
        region = model.memory.region
        model.memory.close()
        memory.copies[0].set_result(None)
        await fetch
        assert bytes(request.inputs[0].data) == b"234"
        request.inputs[0].data = b""
        request.free()
        use.end()
        assert region.is_closed

    run(check, request)


def test_inputs_that_stay(model):
    """A model that reads its inputs on the GPU finds them in the memory of the client, until it lets go of them."""
    memory, model.on_gpus = Memory(bytes(100)), TensorPlaces({"A": 1, "B": 1}, {})
    inputs = [
        InputTensor(name, datatype, [count], b"", gpu=GpuContents(memory, offset, size))
        for name, datatype, count, offset, size in (("A", "FP32", 2, 32, 8), ("B", "UINT8", 3, 16, 3))
    ]
    request = InferRequest("m", inputs=inputs, uses_gpu=True)

    async def check(use, got):
        await use.fetch(request, model)
        assert (memory.copies, model.memory.live) == ([], 0)
        assert [tensor.byte_size for tensor in inputs] == [8, 3]
        slots, request.slots = request.slots, []
        job = Job("", None, tensor_refs(inputs), 1, None, slots, None, 0)
        use.refer(job)
        number = memory.region.number
        assert job.tensors == [
            ("A", "FP32", [2], address(number, 32), 8, MEMORY_GPU, 1),
            ("B", "UINT8", [3], address(number, 16), 3, MEMORY_GPU, 1),
        ]
        assert list(job.regions) == [memory.region]
        use.end()
        assert memory.counting == 2
        job.free()
        assert memory.counting == 0

    run(check, request)


@pytest.mark.parametrize(
    ("reads", "datatype", "offset", "size"),
    [
        (None, "FP32", 0, 8),
        ({"B": 1}, "FP32", 0, 8),
        ({"A": 2, "B": 1}, "BYTES", 0, 8),
        ({"A": 0}, "FP32", 0, 8),
        ({"A": 1}, "FP32", 2, 8),
        ({"A": 1}, "FP32", 8, 8),
        ({"A": 1}, "BYTES", 0, 8),
        ({"A": 1}, "FP32", 0, 0),
    ],
    ids=[
        "another model",
        "another input",
        "strings on another GPU",
        "a GPU without access",
        "not aligned",
        "aligned to elements",
        "strings",
        "no elements",
    ],
)
def test_inputs_that_do_not_stay(model, reads, datatype, offset, size):
    """Inputs are in main memory that the model does not read on that GPU, or that no kernel can read."""
    memory, model.on_gpus = Memory(bytes(100)), None if reads is None else TensorPlaces(reads, {})
    tensor = InputTensor("A", datatype, [size // 4], b"", gpu=GpuContents(memory, offset, size))
    request = InferRequest("m", inputs=[tensor], uses_gpu=True)

    async def check(use, got):
        await fetched(use, request, model, memory)
        assert len(memory.copies) == 1
        job = Job("", None, tensor_refs(request.inputs), 1, None, [], None, 0)
        use.refer(job)
        assert (job.tensors[0][5:], list(job.regions)) == ((0, 0), [])
        tensor.data = b""
        request.free()
        use.end()

    run(check, request)


def test_inputs_that_are_read_on_another_gpu(model):
    """They are copied to that GPU, whatever their alignment; those beside them stay, or are copied to main memory."""
    memory, leases = Memory(bytes(range(100))), Leases()
    model.on_gpus = TensorPlaces({"A": 2, "B": 1}, {})
    model.spec.inputs["C"] = None
    inputs = [on_gpu("A", memory, 3, 5), on_gpu("B", memory, 16, 3), on_gpu("C", memory, 20, 3)]
    request = InferRequest("m", inputs=inputs, uses_gpu=True)

    async def check(use, got):
        await fetched(use, request, model, memory)
        assert len(memory.copies) == 1
        slots, request.slots = request.slots, []
        job = Job("", None, tensor_refs(inputs), 1, None, slots, None, 0)
        use.refer(job)
        copy, own = leases.region.number, memory.region.number
        assert job.tensors == [
            ("A", "UINT8", [5], address(copy, 0), 5, MEMORY_GPU, 2),
            ("B", "UINT8", [3], address(own, 16), 3, MEMORY_GPU, 1),
            ("C", "UINT8", [3], inputs[2].offset, 3, 0, 0),
        ]
        assert (leases.contents[:5], bytes(inputs[2].data)) == (memory.contents[3:8], bytes(memory.contents[20:23]))
        assert set(job.regions) == {leases.region, memory.region}
        inputs[2].data = b""
        job.free()
        use.end()
        assert memory.counting == 0

    run(check, request, leases)
    assert model.memory.live == 0


def test_more_inputs_than_the_model_has(model):
    """Nothing is copied for a request that the check refuses: one region could be named any number of times."""
    memory = Memory(b"x")
    request = InferRequest("m", inputs=[on_gpu(f"A{number}", memory, 0, 1) for number in range(3)], uses_gpu=True)

    async def check(use, got):
        await fetched(use, request, model, memory)
        assert (memory.copies, request.slots) == ([], [])

    run(check, request)


def test_large_input(model):
    """The pages of a large slot are made by a thread, before the copy."""
    size = 2 * BARE_BYTES_MIN
    memory = Memory(bytes(range(256)) * (size // 256))
    request = InferRequest("m", inputs=[on_gpu("A", memory, 0, size)], uses_gpu=True)

    async def check(use, got):
        fetch = asyncio.ensure_future(use.fetch(request, model))
        await memory.begun.wait()
        memory.copies[0].set_result(None)
        await fetch
        (tensor,) = request.inputs
        assert bytes(tensor.data) == bytes(memory.contents)
        tensor.data = b""
        request.free()

    run(check, request)
    assert model.memory.live == 0


def test_no_memory_for_an_input(model, monkeypatch):
    """The request fails, and its slot is freed with it."""

    def fail(offset, size):
        raise OutOfMemoryError("none left")

    monkeypatch.setattr(model.memory.region, "commit", fail)
    memory = Memory()
    request = InferRequest("m", inputs=[on_gpu("A", memory, 0, 2 * BARE_BYTES_MIN)], uses_gpu=True)

    async def check(use, got):
        with pytest.raises(InferenceError, match="no room for a request of"):
            await use.fetch(request, model)
        assert (model.expected, memory.copies) == (0, [])
        request.free()

    run(check, request)
    assert model.memory.live == 0


def test_fetch_that_fails(model):
    """A failure is raised when no other copy runs any more."""
    memory = Memory(b"0123456789")
    request = InferRequest("m", inputs=[on_gpu("A", memory, 0, 5), on_gpu("B", memory, 5, 5)], uses_gpu=True)

    async def check(use, got):
        fetch = asyncio.ensure_future(use.fetch(request, model))
        await settle()
        memory.copies[0].set_exception(InferenceError("no"))
        await settle()
        assert not fetch.done()
        memory.copies[1].set_result(None)
        with pytest.raises(InferenceError, match="no"):
            await fetch
        assert model.expected == 0

    run(check, request)


@pytest.mark.parametrize(
    ("outputs", "staying"),
    [
        (None, None),
        ({}, None),
        ({"A": 0, "B": 1}, {"B": 1}),
        ({"A": 1}, {"A": 1}),
        ({"A": 2}, {"A": 2}),
        ({"other": 1}, None),
    ],
)
def test_outputs_that_stay(model, outputs, staying):
    """Outputs stay on the GPU where they are made, each one by itself, if they can be copied to their places."""
    memory = Memory(bytes(8))
    request = InferRequest("m", gpu_places={"A": place(memory, 4), "B": place(memory, 4, 4)}, uses_gpu=True)

    def places(gpus):
        return {name: (0, 0, MEMORY_GPU, gpu) for name, gpu in gpus.items()}

    async def check(use, got):
        model.on_gpus = None if outputs is None else TensorPlaces({}, places(outputs))
        assert use.places_on_gpu(model) == (None if staying is None else places(staying))

    run(check, request)


@pytest.mark.parametrize("refusal", [None, GpuHandleError("no access", "open")], ids=["access", "no access"])
def test_output_on_another_gpu(refusal):
    """It is copied to its place at once, or else through main memory, and its memory goes back when it is there."""
    memory, leases, released = Memory(bytes(8)), Leases(), []
    leases.contents[16:20], leases.refusal = b"wxyz", refusal
    request = InferRequest("m", gpu_places={"A": place(memory, 4, 2)}, uses_gpu=True)
    output = OutputTensor("A", "UINT8", [4], b"", address(leases.region.number, 16), OnGpu(leases.region, 4))

    async def check(use, got):
        released_by = {"release": lambda: released.append(1), "regions": [leases.region]}
        use.respond(InferResponse("m", 1, "", [output], **released_by), True)
        if refusal is not None:
            await memory.begun.wait()
            memory.copies[0].set_result(None)
        await settle()
        ((response, final),) = got
        assert (final, response.outputs[0].place.byte_size) == (True, 4)
        assert bytes(memory.contents) == b"\0\0wxyz\0\0"
        response.release()
        assert (released, memory.counting) == ([1], 0)

    run(check, request, leases)


def response_of(region, *outputs, released=None):
    made = [
        OutputTensor(name, "UINT8", [size], region.view[at : at + size], address(region.number, at))
        for name, at, size in outputs
    ]
    release = (lambda: None) if released is None else lambda: released.append(1)
    return InferResponse("m", 1, "", made, release=release, regions=[region])


def test_outputs(region):
    """An output is in its place before the client has the response; others are as they were."""
    memory, released = Memory(bytes(8)), []
    request = InferRequest("m", gpu_places={"A": place(memory, 4, 2)}, uses_gpu=True)
    region.view[:8] = b"abcdefgh"

    async def check(use, got):
        use.respond(response_of(region, ("A", 1, 3), ("B", 4, 2), released=released), True)
        await settle()
        assert got == []
        assert memory.counting == 1
        memory.copies[0].set_result(None)
        await settle()
        ((response, final),) = got
        assert final
        first, second = response.outputs
        assert (first.place.region, first.place.offset, first.place.byte_size, first.data) == ("r", 2, 3, b"")
        assert (second.place, bytes(second.data)) == (None, b"ef")
        assert bytes(memory.contents) == b"\0\0bcd\0\0\0"
        assert memory.counting == 0
        assert released == []
        response.release()
        assert released == [1]

    run(check, request)


def test_private_output():
    """An output in private memory of the server is copied by way of a region."""
    memory = Memory(bytes(4))
    request = InferRequest("m", gpu_places={"A": place(memory, 4)}, uses_gpu=True)

    async def check(use, got):
        use.respond(InferResponse("m", 1, "", [OutputTensor("A", "UINT8", [4], b"wxyz")]), True)
        await memory.begun.wait()
        memory.copies[0].set_result(None)
        await settle()
        assert bytes(memory.contents) == b"wxyz"
        assert len(got) == 1

    run(check, request)


def test_order(region):
    """Responses, errors and the end stay in order, whichever copy ends first."""
    memory = Memory(bytes(8))
    request = InferRequest("m", gpu_places={"A": place(memory, 8)}, uses_gpu=True)
    failure = InferenceError("no")

    async def check(use, got):
        for _ in range(2):
            use.respond(response_of(region, ("A", 0, 8)), False)
        use.respond(response_of(region, ("B", 0, 8)), False)
        use.respond(failure, False)
        use.respond(None, True)
        await settle()
        memory.copies[1].set_result(None)
        await settle()
        assert got == []
        assert memory.counting == 1
        memory.copies[0].set_result(None)
        await settle()
        assert [final for _, final in got] == [False] * 4 + [True]
        assert [outcome.outputs[0].name for outcome, _ in got[:3]] == ["A", "A", "B"]
        assert [outcome for outcome, _ in got[3:]] == [failure, None]
        assert memory.counting == 0

    run(check, request)


@pytest.mark.parametrize("size", [8, 9])
def test_outputs_that_fail(region, size):
    """An output that does not fit, or cannot be copied, is an error in the place of the response."""
    memory, released = Memory(bytes(8)), []
    request = InferRequest("m", gpu_places={"A": place(memory, 8)}, uses_gpu=True)

    async def check(use, got):
        use.respond(response_of(region, ("A", 0, size), released=released), True)
        await settle()
        if memory.copies:
            memory.copies[0].set_exception(InferenceError("lost"))
            await settle()
        ((outcome, final),) = got
        assert final
        assert outcome.message == (
            "lost"
            if size == 8
            else "shared memory size specified with the request for output 'A' (8 bytes) should be at least 9 bytes to "
            "hold the results"
        )
        assert released == [1]
        assert memory.counting == 0

    run(check, request)


@pytest.mark.parametrize("end", ["cancelled before", "cancelled", "a defect"])
def test_outputs_are_never_there(region, end):
    """A copy that is cancelled, or raises what it must not, has an error in its place, and holds nothing back."""
    memory, released, got = Memory(bytes(8)), [], []
    request = InferRequest("m", gpu_places={"A": place(memory, 8)}, uses_gpu=True)

    async def check():
        async with asyncio.TaskGroup() as tasks:
            peers = GpuPeers(Leases(), tasks)
            use = GpuUse(request, lambda outcome, final: got.append((outcome, final)), tasks, peers)
            use.respond(response_of(region, ("A", 0, 8), released=released), False)
            use.respond(None, True)
            if end != "cancelled before":
                await memory.begun.wait()
            if end == "a defect":
                memory.copies[0].set_exception(ValueError("a defect"))
                await asyncio.Future()  # the group cancels it
            raise ValueError("a defect")

    with pytest.raises(ExceptionGroup, match="TaskGroup"):
        asyncio.run(check())
    (failure, first), last = got
    assert (failure.message, first, last) == ("the server ends", False, (None, True))
    assert released == [1]
    assert memory.counting == 0


def test_process_ends_behind_its_responses():
    """Responses that are copied, or wait for others, keep their memory when the process that made them has ended."""
    memory, region = Memory(bytes(4)), create_region("test")
    region.commit(0, 4096)
    region.view[:8] = b"abcdefgh"
    request = InferRequest("m", gpu_places={"A": place(memory, 4)}, uses_gpu=True)

    async def check(use, got):
        use.respond(response_of(region, ("A", 0, 4)), False)
        use.respond(response_of(region, ("B", 4, 2)), True)
        region.close()
        await settle()
        memory.copies[0].set_result(None)
        await settle()
        assert bytes(memory.contents) == b"abcd"
        first, second = [response for response, _ in got]
        assert bytes(second.outputs[0].data) == b"ef"
        first.release()
        assert not region.is_closed
        second.outputs.clear()
        second.release()
        assert region.is_closed

    run(check, request)


def test_response_that_is_known_by_its_key():
    """The response of a cache is passed on without its key: the request's bytes do not say what the GPU holds."""
    memory = Memory(b"x")

    class Cached(InferResponse):
        pass

    async def check(use, got):
        use.respond(Cached("m", 1, "i", []), True)
        assert type(got[0][0]) is InferResponse
        assert got[0][0].id == "i"

    run(check, InferRequest("m", inputs=[on_gpu("A", memory, 0, 1)], uses_gpu=True))
    assert memory.counting == 0
