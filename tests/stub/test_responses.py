# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writing responses, and the inputs of calls, to the response region."""

from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.stub import gpus
from pyruntime.stub.pb_utils import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)
from pyruntime.stub.pb_utils.gpu_tensor import OnGpu
from pyruntime.stub.response_memory import SMALL_BYTES
from pyruntime.stub.responses import ResponseWriter, StateWriter
from pyruntime.utils.addresses import address
from pyruntime.utils.arena import ALIGNMENT, LARGE_BYTES
from pyruntime.utils.errors import Code, OutOfMemoryError
from pyruntime.utils.messages import INLINE_BYTES_MAX, NO_SLOT, OK
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

OUTPUTS = {"A", "B"}


@pytest.fixture
def region(new_region):
    return new_region()


@pytest.fixture
def writer(region):
    return ResponseWriter(region, 1 << 20, "m", OUTPUTS)


def live(writer):
    """How many slots are in use."""
    return writer._arena.live


class TestWrite:
    def test_outputs(self, region, writer):
        """Outputs lie in one slot, each aligned for any datatype, in the order the model gave them."""
        b, a = np.arange(5, dtype=np.int8), np.arange(6, dtype=np.float64).reshape(2, 3)
        code, message, slot, tensors, parameters = writer.write(
            InferenceResponse([Tensor("B", b), Tensor("A", a)]), OUTPUTS
        )
        assert (code, message, parameters) == (OK, "", "")
        assert [tuple(tensor[:3]) for tensor in tensors] == [("B", "INT8", [5]), ("A", "FP64", [2, 3])]
        assert [tensor[4] for tensor in tensors] == [5, 48]
        assert [tensor[3] % ALIGNMENT for tensor in tensors] == [0, 0]
        for (_, _, _, offset, size, *_), array in zip(tensors, (b, a), strict=True):
            assert region.map[offset : offset + size] == array.tobytes()
        assert slot == tensors[0][3]
        assert live(writer) == 1
        writer.free([slot])

    @pytest.mark.parametrize("count", [SMALL_BYTES - 1, SMALL_BYTES, SMALL_BYTES + 1, 1 << 20])
    def test_any_size(self, region, writer, count):
        """Small outputs and large ones arrive alike."""
        array = np.random.default_rng(1).integers(0, 256, count, np.uint8)
        _, _, _, ((_, _, _, offset, size, _, _),), _ = writer.write(InferenceResponse([Tensor("A", array)]), OUTPUTS)
        assert region.map[offset : offset + size] == array.tobytes()

    def test_bytes(self, region, writer):
        """BYTES are written in their encoding."""
        array = np.array([[b"a", "bc"]], object)
        _, _, _, ((_, datatype, shape, offset, size, _, _),), _ = writer.write(
            InferenceResponse([Tensor("A", array)]), OUTPUTS
        )
        assert (datatype, shape) == ("BYTES", [1, 2])
        assert region.map[offset : offset + size] == b"\1\0\0\0a\2\0\0\0bc"

    @pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.zeros((2, 0), object)], ids=["FP32", "BYTES"])
    def test_no_elements(self, region, writer, array):
        """Outputs without contents take no slot."""
        _, _, slot, ((_, _, shape, offset, size, _, _),), _ = writer.write(
            InferenceResponse([Tensor("A", array)]), OUTPUTS
        )
        assert slot == NO_SLOT
        assert (list(shape), offset, size) == (list(array.shape), 0, 0)
        assert live(writer) == 0

    def test_one_with_contents_and_one_without(self, region, writer):
        """A tensor without contents may stand beside one that has some."""
        code, _, slot, tensors, _ = writer.write(
            InferenceResponse([Tensor("A", np.zeros(0)), Tensor("B", np.ones(1))]), OUTPUTS
        )
        assert code == OK
        assert [tensor[4] for tensor in tensors] == [0, 8]
        assert all(0 <= tensor[3] <= region.limit for tensor in tensors)
        writer.free([slot])

    def test_nothing(self, region, writer):
        """A response may have no outputs at all."""
        assert writer.write(InferenceResponse(), OUTPUTS) == (OK, "", NO_SLOT, [], "")

    def test_parameters(self, region, writer):
        """Parameters go along as JSON."""
        assert writer.write(InferenceResponse(parameters={"a": 1}), OUTPUTS)[4] == '{"a": 1}'

    def test_output_nobody_asked_for(self, region, writer):
        """An output that the client does not want is left out."""
        response = InferenceResponse([Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))])
        tensors = writer.write(response, {"B"})[3]
        assert [tensor[0] for tensor in tensors] == ["B"]
        assert writer.write(response, set())[2:4] == (NO_SLOT, [])

    def test_output_the_model_does_not_have(self, region, writer):
        """An output that is not configured is left out, and reported, whether all outputs or some are asked for."""
        reported = []
        writer.on_undeclared = reported.append
        response = InferenceResponse([Tensor("C", np.zeros(1)), Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))])
        assert [tensor[0] for tensor in writer.write(response, OUTPUTS)[3]] == ["A", "B"]
        assert [tensor[0] for tensor in writer.write(response, {"A"})[3]] == ["A"]
        assert reported == ["C", "C"]

    @pytest.mark.parametrize("code", Code)
    def test_error(self, region, writer, code):
        """A response's own error goes out with its code."""
        response = InferenceResponse([Tensor("A", np.zeros(1))], TritonError("no", code))
        assert writer.write(response, OUTPUTS) == (code.value, "no", NO_SLOT, [], "")
        assert live(writer) == 0

    def test_slots_are_reused(self, region, writer):
        """A slot that was freed serves the next response."""
        response = InferenceResponse([Tensor("A", np.zeros(1))])
        slot = writer.write(response, OUTPUTS)[2]
        writer.free([slot])
        assert writer.write(response, OUTPUTS)[2] == slot

    def test_no_memory(self, region, writer, monkeypatch):
        """Without memory for it the one request fails as UNAVAILABLE, and the next may go through."""

        def commit(offset, size):
            raise OutOfMemoryError("no shared memory left")

        response = InferenceResponse([Tensor("A", np.zeros(100))])
        with monkeypatch.context() as patch:
            patch.setattr(region, "commit", commit)
            code, message, slot, tensors, _ = writer.write(response, OUTPUTS)
        assert (code, slot, tensors) == (Code.UNAVAILABLE, NO_SLOT, [])
        assert message == "no room for a response of 832 bytes: no shared memory left"
        assert writer.write(response, OUTPUTS)[0] == OK

    def test_bytes_that_cannot_be_encoded(self, writer):
        """Contents that have no encoding fail their own request, and take no slot."""
        odd = Tensor("A", np.array(["\udcff"], object))
        code, message, slot, _, _ = writer.write(InferenceResponse([odd]), OUTPUTS)
        assert (code, slot) == (Code.INTERNAL, NO_SLOT)
        assert message.startswith("a response of model 'm' cannot be sent: ")
        assert live(writer) == 0


class TestPlace:
    """The inputs of a call to another model."""

    def test_small_ones_go_along(self, writer, regions):
        """Up to a limit contents stand in the message itself."""
        a, b = np.arange(5, dtype=np.int8), np.arange(6, dtype=np.float64).reshape(2, 3)
        slot, wire = writer.place([Tensor("X", a), Tensor("Y", b)], regions)
        assert slot == NO_SLOT
        assert wire == [("X", "INT8", [5], a.tobytes(), 5, 0, 0), ("Y", "FP64", [2, 3], b.tobytes(), 48, 0, 0)]
        assert live(writer) == 0

    @pytest.mark.parametrize(("size", "inline"), [(INLINE_BYTES_MAX, True), (INLINE_BYTES_MAX + 1, False)])
    def test_the_limit(self, writer, regions, size, inline):
        """It is one for all tensors together."""
        tensors = [Tensor("X", np.zeros(size - 100, np.uint8)), Tensor("Y", np.zeros(100, np.uint8))]
        slot, wire = writer.place(tensors, regions)
        assert [type(each[3]) is bytes for each in wire] == [inline, inline]
        assert (slot == NO_SLOT) is inline

    def test_larger_ones_are_copied_into_one_slot(self, region, writer, regions):
        """Arrays of the model's own lie in one slot, each aligned for any datatype."""
        a, b = np.arange(9001, dtype=np.int16), np.arange(6, dtype=np.float64).reshape(2, 3)
        slot, wire = writer.place([Tensor("X", a), Tensor("Y", b)], regions)
        assert [each[:3] for each in wire] == [("X", "INT16", [9001]), ("Y", "FP64", [2, 3])]
        assert wire[0][3] == slot
        for (_, _, _, at, size, *_), array in zip(wire, (a, b), strict=True):
            assert at % ALIGNMENT == 0
            assert region.map[at : at + size] == array.tobytes()
        assert live(writer) == 1

    def test_any_name(self, writer, regions):
        """They are the other model's inputs: this model's outputs have nothing to do with it."""
        assert writer.place([Tensor("Z", np.zeros(1))], regions)[1][0][0] == "Z"

    @pytest.mark.parametrize("size", [3, INLINE_BYTES_MAX])
    def test_bytes(self, region, writer, regions, size):
        """BYTES are written in their encoding."""
        element = b"x" * size
        _, ((_, datatype, _, at, length, _, _),) = writer.place([Tensor("X", np.array([element], object))], regions)
        assert datatype == "BYTES"
        found = at if type(at) is bytes else region.map[at : at + length]
        assert found == size.to_bytes(4, "little") + element

    def test_none(self, writer, regions):
        """A call may have no inputs, or only such as have no contents."""
        assert writer.place([], regions) == (NO_SLOT, [])
        slot, wire = writer.place([Tensor("X", np.zeros((0, 2), np.float32))], regions)
        assert (slot, wire) == (NO_SLOT, [("X", "FP32", [0, 2], b"", 0, 0, 0)])
        assert live(writer) == 0

    def test_a_large_one_that_is_shared_already_stays(self, writer, regions):
        """A large input of the model's own request is passed on where it lies; a small one is copied."""
        number = regions.requests.number
        wires = [["IN", "UINT8", [size], 4096, size, 0, 0] for size in (LARGE_BYTES, LARGE_BYTES - 1)]
        large, small = (Tensor._from_region(regions, each) for each in wires)
        slot, wire = writer.place([large], regions)
        assert slot == NO_SLOT
        assert wire == [("IN", "UINT8", [LARGE_BYTES], address(number, 4096), LARGE_BYTES, 0, 0)]
        slot, wire = writer.place([small, large], regions)
        assert wire[0][3] == slot
        assert wire[1][3] == address(number, 4096)

    def test_large_views_that_do_not_lie_in_order_are_copied(self, region, writer, regions):
        """A view that is not contiguous is copied: only contiguous memory can be passed by address."""
        view = np.ndarray((2 * LARGE_BYTES,), np.uint8, regions.requests.map, 0)
        view[:] = np.arange(2 * LARGE_BYTES) % 251
        slot, ((_, _, _, at, size, _, _),) = writer.place([Tensor("X", view[::2])], regions)
        assert at == slot
        assert region.map[at : at + size] == view[::2].tobytes()

    def test_no_memory(self, region, writer, regions, monkeypatch):
        """Without memory for its inputs, the call raises in the model."""

        def commit(offset, size):
            raise OutOfMemoryError("no shared memory left")

        monkeypatch.setattr(region, "commit", commit)
        with pytest.raises(
            TritonModelException, match=r"^no room for a request of 80000 bytes: no shared memory left$"
        ):
            writer.place([Tensor("X", np.zeros(10_000))], regions)


class TestStates:
    @pytest.fixture
    def writer(self, region):
        return StateWriter(region, 1 << 20, "m", {"A", "B"}, {"B", "S"})

    def test_in_a_slot_of_their_own(self, region, writer):
        """States are kept longer than outputs. One that is an output for clients, too, is written twice."""
        tensors = [Tensor("A", np.arange(3)), Tensor("S", np.arange(2)), Tensor("B", np.arange(9))]
        _, _, slot, outputs, _, (kept, states) = writer.write(InferenceResponse(tensors), {"A", "B"})
        assert [tensor[0] for tensor in outputs] == ["A", "B"]
        assert [(name, shape) for name, _, shape, *_ in states] == [("S", [2]), ("B", [9])]
        writer.free([slot])
        found = [np.frombuffer(region.map, np.int64, shape[0], at).tolist() for _, _, shape, at, *_ in states]
        assert found == [[0, 1], list(range(9))]
        writer.free([kept])
        assert live(writer) == 0

    def test_none(self, writer):
        """A response without states, or with an error, is like any other."""
        assert len(writer.write(InferenceResponse([Tensor("A", np.zeros(1))]), OUTPUTS)) == 5
        failed = InferenceResponse([Tensor("S", np.zeros(1))], error=TritonError("no"))
        assert writer.write(failed, OUTPUTS)[:2] == (Code.INTERNAL, "no")

    def test_without_contents(self, writer):
        """A state of no bytes has no slot."""
        wire = writer.write(InferenceResponse([Tensor("S", np.zeros((0, 2)))]), OUTPUTS)
        assert wire[5] == (NO_SLOT, [("S", "FP64", [0, 2], 0, 0, 0, 0)])

    def test_no_room(self, writer, monkeypatch):
        """Without memory for its states a response is an error, and leaves nothing behind."""
        allocate = writer._arena.allocate

        def once(size):
            monkeypatch.setattr(writer._arena, "allocate", full)
            return allocate(size)

        def full(size):
            raise OutOfMemoryError("full")

        monkeypatch.setattr(writer._arena, "allocate", once)
        code, text, *_ = writer.write(InferenceResponse([Tensor("B", np.zeros(1))]), OUTPUTS)
        assert (code, text) == (Code.UNAVAILABLE, "the states that model 'm' returned cannot be kept: full")
        assert live(writer) == 0

    def test_drop(self, writer):
        """A response that is not sent gives both slots back."""
        writer.drop(writer.write(InferenceResponse([Tensor("B", np.zeros(1))]), OUTPUTS))
        assert live(writer) == 0

    def test_on_the_gpu_of_the_model(self, writer):
        """A state there stays, and goes with the slot of the others; one on another GPU is copied to main memory."""
        freed = []
        memory = SimpleNamespace(place_all=lambda tensors, passes_on: ([OnGpu(7, 2)], [7]), free_all=freed.extend)
        writer.gpu_memory = lambda: (1, memory)
        response = InferenceResponse([Tensor("A", np.zeros(1)), on_gpu("S", 1), on_gpu("B", 0)])
        *_, (slot, states) = writer.write(response, {"A"})
        assert states[0] == ("S", "INT64", [3], 7, 24, MEMORY_GPU, 2)
        assert states[1][:3] == ("B", "INT64", [3])
        assert states[1][5:] == (MEMORY_CPU, 0)
        writer.free([slot])
        assert freed == [7]

    def test_on_a_gpu_without_room(self, writer, monkeypatch):
        """Where main memory has no room for the slot the memory on the GPU is free."""
        freed = []
        memory = SimpleNamespace(place_all=lambda tensors, passes_on: ([OnGpu(7, 2)], [7]), free_all=freed.extend)
        writer.gpu_memory = lambda: (1, memory)
        monkeypatch.setattr(writer, "_allocate", no_room)
        wire = writer.write(InferenceResponse([on_gpu("S", 1)]), set())
        assert wire[:2] == (Code.UNAVAILABLE, "the states that model 'm' returned cannot be kept: it is full")
        assert freed == [7]


class Contents:
    """Contents of three integers on a GPU."""

    nbytes = 24

    def __init__(self, gpu):
        self.gpu = gpu

    def copy_to(self, target):
        target[:] = bytes(24)


class OnGpuTensor(Tensor):
    """A tensor on a GPU."""


def on_gpu(name, gpu):
    tensor = OnGpuTensor(name, np.zeros(3, np.int64))
    tensor._array = Contents(gpu)
    return tensor


def test_loans_are_freed_before_a_response_is_written(writer):
    """The memory that a destructor has given back has room for it."""
    loan = writer.lend(100)
    del loan
    assert live(writer) == 1
    writer.write(InferenceResponse([Tensor("A", np.zeros(5))]), OUTPUTS)
    assert live(writer) == 1


def test_no_room_for_a_call_with_inputs_on_a_gpu(writer, monkeypatch):
    """The model has the error that it may expect, and the memory on the GPU is free."""
    freed = []
    memory = SimpleNamespace(place_all=lambda *_, **__: ([OnGpu(7, 0)], [7]), free_all=freed.extend)
    monkeypatch.setattr(gpus, "known", {0})
    monkeypatch.setattr(writer, "_allocate", no_room)
    with pytest.raises(TritonModelException, match="no room for a request: it is full"):
        writer.place([object()], SimpleNamespace(gpu=memory))
    assert freed == [7]


def no_room(size):
    raise OutOfMemoryError("it is full")
