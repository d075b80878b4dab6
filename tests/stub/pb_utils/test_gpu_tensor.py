# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs of the stand-in, through DLPack."""

import os
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.stub import gpus
from pyruntime.stub.client_memory import GpuOutputs
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils import InferenceResponse, Tensor, TritonModelException, dlpack
from pyruntime.stub.pb_utils.gpu_tensor import GpuTensor, OnGpu
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.messages import OK
from pyruntime.utils.regions import Region
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU

HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class GpuArray:
    """An array of a framework on a GPU: what is done to it takes place later."""

    def __init__(self, contents, gpu=0, datatype="FP32"):
        self.device = gpu
        self.datatype = datatype
        self.shape = contents.shape
        self.gpu = gpu_of(gpu)
        self.streams = []
        self.pointer = self.gpu.allocate(max(contents.nbytes, 1))
        self.set(contents)

    def set(self, contents):
        if contents.nbytes:
            self.gpu.enqueue(lambda: self.gpu.write(self.pointer, contents.tobytes()))

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return dlpack.to_capsule(self, self.pointer, self.shape, self.datatype, self.device)


@pytest.fixture(autouse=True)
def _first_use(machine, monkeypatch):
    """As in a process that has used no GPU yet."""
    monkeypatch.setattr(gpus, "opened", {})


@pytest.fixture
def writer():
    """A writer of responses with the output OUT, and its region."""
    fd = os.memfd_create("responses")
    os.ftruncate(fd, 1 << 22)
    region = Region(fd)
    yield ResponseWriter(region, 1 << 16, "m", {"OUT"}), region
    region.close()


def written(writer, tensor):
    """The contents of a response with this output."""
    write, region = writer
    kind, _, _, refs, _ = write.write(InferenceResponse([tensor]), {"OUT"})
    assert kind == OK
    ((name, _, shape, at, size, *_),) = refs
    assert (name, list(shape)) == ("OUT", tensor.shape())
    return bytes(region.view[at : at + size])


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 4), (100, 100)])
@pytest.mark.parametrize("as_capsule", [False, True])
def test_tensor(writer, shape, as_capsule):
    """It says where it is, and is copied when it is needed, after the framework's work."""
    contents = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    array = GpuArray(contents, gpu=1)
    tensor = Tensor.from_dlpack("OUT", array.__dlpack__() if as_capsule else array)
    assert type(tensor) is GpuTensor
    assert isinstance(tensor, Tensor)
    assert (tensor.is_cpu(), tensor.shape(), tensor.triton_dtype()) == (False, list(shape), 11)
    assert tensor.__dlpack_device__() == (2, 1)
    np.testing.assert_array_equal(tensor.as_numpy(), contents)
    assert tensor.as_numpy().dtype == np.float32
    assert written(writer, tensor) == contents.tobytes()


@pytest.mark.parametrize("gpu", [0, 1])
def test_stays_where_it_may(writer, gpu):
    """An output that may stay on a GPU stays there. On another one, as after a move of its model, it does not."""
    write, region = writer
    tensor = Tensor.from_dlpack("OUT", GpuArray(np.ones(3, np.float32), gpu=gpu))
    freed = []
    memory = SimpleNamespace(place_all=lambda tensors, passes_on: ([OnGpu(4096, gpu)], [4096]), free=freed.append)
    wanted = GpuOutputs({"OUT"}, {"OUT": (0, 0, MEMORY_GPU, 0)}, SimpleNamespace(gpu=memory))
    kind, _, _, ((*_, at, size, where, device),), _ = write.write(InferenceResponse([tensor]), wanted)
    assert (kind, size) == (OK, 12)
    if gpu == 0:
        assert (at, where, device, freed) == (4096, MEMORY_GPU, 0, [])
    else:
        assert (where, device, freed) == (MEMORY_CPU, 0, [4096])
        assert bytes(region.view[at : at + size]) == np.ones(3, np.float32).tobytes()


def test_later_changes(writer):
    """What the model does to its array after it made the tensor is in the response, whatever was read before."""
    array = GpuArray(np.zeros(3, np.float32))
    tensor = Tensor.from_dlpack("OUT", array)
    assert tensor.as_numpy().tolist() == [0, 0, 0]
    array.set(np.ones(3, np.float32))
    assert tensor.as_numpy().tolist() == [1, 1, 1]
    array.set(np.full(3, 2, np.float32))
    assert written(writer, tensor) == np.full(3, 2, np.float32).tobytes()


def test_copies_are_the_model_s(writer):
    """An array of as_numpy is a copy: writing to it changes nothing on the GPU."""
    tensor = Tensor.from_dlpack("OUT", GpuArray(np.zeros(3, np.float32)))
    tensor.as_numpy()[:] = 7
    assert tensor.as_numpy().tolist() == [0, 0, 0]


def test_bfloat16(writer):
    """numpy has no BF16, and the response has."""
    contents = np.arange(5, dtype=np.uint16)
    tensor = Tensor.from_dlpack("OUT", GpuArray(contents, datatype="BF16"))
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16"):
        tensor.as_numpy()
    assert written(writer, tensor) == contents.tobytes()


def test_handed_on():
    """A consumer gets the memory on the GPU itself, complete, and keeps it alive."""
    array = GpuArray(np.arange(4, dtype=np.float32))
    tensor = Tensor.from_dlpack("A", array)
    taken = dlpack.import_tensor(tensor)
    assert (taken.pointer, taken.gpu, taken.shape) == (array.pointer, 0, (4,))
    target = bytearray(16)
    array.gpu.read(taken.pointer, target)
    assert bytes(target) == np.arange(4, dtype=np.float32).tobytes()
    again = Tensor.from_dlpack("B", tensor)
    del tensor, array
    assert again.as_numpy().tolist() == [0, 1, 2, 3]


def test_stream_of_the_producer():
    """The array is asked for its contents on the stream that copies them."""
    array = GpuArray(np.zeros(3, np.float32), gpu=1)
    Tensor.from_dlpack("A", array)
    assert array.streams == [gpu_of(1).stream]


@pytest.mark.parametrize("stream", [None, 1, 2, 0x7F00_0000_0000])
def test_stream_of_the_consumer(stream):
    """A consumer finds the contents complete on its stream, which None is CUDA's legacy default stream for."""
    array = GpuArray(np.arange(4, dtype=np.float32))
    tensor = Tensor.from_dlpack("A", array)
    tensor.__dlpack__(stream=stream)
    target = bytearray(16)
    array.gpu.read_by(1 if stream is None else stream, array.pointer, target)
    assert bytes(target) == np.arange(4, dtype=np.float32).tobytes()


def test_no_stream():
    """A consumer that asks for no order waits for nothing; a capsule alone is complete for every stream."""
    array = GpuArray(np.arange(4, dtype=np.float32))
    tensor = Tensor.from_dlpack("A", array)
    target = bytearray(16)
    tensor.__dlpack__(stream=-1)
    array.gpu.read(array.pointer, target)
    assert bytes(target) == bytes(16)
    tensor.to_dlpack()
    array.gpu.read_by(9, array.pointer, target)
    assert bytes(target) == np.arange(4, dtype=np.float32).tobytes()


def test_what_a_consumer_may_ask_for():
    """Another device than the tensor's is main memory at most; copies on the GPU are the consumer's."""
    contents = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = GpuArray(contents, gpu=1)
    tensor = Tensor.from_dlpack("A", array)
    for options in ({"dl_device": (2, 1)}, {"copy": False}, {"max_version": (1, 0)}):
        taken = dlpack.from_capsule(tensor.__dlpack__(**options))
        assert (taken.pointer, taken.gpu, taken.read_only) == (array.pointer, 1, False)
    for options in ({"dl_device": (1, 0)}, {"dl_device": (1, 0), "copy": True}):
        taken = dlpack.from_capsule(tensor.__dlpack__(**options))
        assert taken.gpu is None
        copied = dlpack.as_array(taken.owner, taken.pointer, taken.shape, np.dtype(np.float32))
        np.testing.assert_array_equal(copied, contents)
    for options, message in (
        ({"dl_device": (2, 0)}, "cannot be exported to"),
        ({"dl_device": (1, 0), "copy": False}, "without a copy"),
        ({"copy": True}, "copy what you take"),
        ({"stream": 0}, "stream 0 is ambiguous"),
    ):
        with pytest.raises(BufferError, match=message):
            tensor.__dlpack__(**options)


def test_read_only_memory():
    """A consumer that can know it knows that it must not write."""
    array = GpuArray(np.zeros(4, np.float32))
    imported = dlpack.ImportedTensor(array.pointer, (4,), "FP32", array, 0, True)
    tensor = GpuTensor("A", imported)
    assert dlpack.from_capsule(tensor.__dlpack__(max_version=(1, 0))).read_only is HAS_VERSIONS
    assert dlpack.from_capsule(tensor.__dlpack__()).read_only is False
    assert tensor.__cuda_array_interface__["data"] == (array.pointer, True)


def test_repeated_exports_take_no_memory():
    """Each capsule keeps the contents alive as long as its consumer has it, and no longer; none has a copy."""
    array = GpuArray(np.arange(4, dtype=np.float32))
    tensor = Tensor.from_dlpack("A", array)
    before = array.gpu.properties().free_bytes
    taken = [dlpack.from_capsule(tensor.to_dlpack()) for _ in range(100)]
    assert array.gpu.properties().free_bytes == before
    contents = weakref.ref(tensor._on_gpu)
    del tensor
    taken = taken[-1:]
    assert contents() is not None
    assert taken[0].pointer == array.pointer
    taken.clear()
    assert contents() is None


class CudaArray:
    """An array of a framework without DLPack, such as Numba."""

    def __init__(self, array, **fields):
        self.array = array  # of GpuArray
        self.fields = {
            "shape": array.shape,
            "typestr": "<f4",
            "data": (array.pointer, False),
            "version": 3,
            "strides": None,
            "stream": None,
            **fields,
        }

    @property
    def __cuda_array_interface__(self):
        return self.fields


@pytest.mark.parametrize("strides", [None, (12, 4)])
def test_cuda_array(writer, strides):
    """Frameworks without DLPack hand their arrays in and out by Numba's protocol."""
    contents = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = GpuArray(contents)
    tensor = Tensor.from_dlpack("OUT", CudaArray(array, strides=strides))
    assert (tensor.is_cpu(), tensor.shape(), tensor.__dlpack_device__()) == (False, [2, 3], (2, 0))
    assert written(writer, tensor) == contents.tobytes()
    array.set(contents + 1)
    handed_on = tensor.__cuda_array_interface__
    assert handed_on == CudaArray(array).fields
    target = bytearray(24)
    array.gpu.read_by(5, handed_on["data"][0], target)
    assert bytes(target) == (contents + 1).tobytes()
    again = Tensor.from_dlpack("A", SimpleNamespace(__cuda_array_interface__=handed_on))
    np.testing.assert_array_equal(again.as_numpy(), contents + 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strides": (4, 8)}, "DLPack tensor is not contiguous"),
        ({"typestr": "<c8"}, "is not of a datatype of Triton"),
        ({"typestr": ">f4"}, "is not of a datatype of Triton"),
        ({"mask": 1}, "is not of a datatype of Triton"),
        ({"data": (1 << 50, False)}, "lies in memory that is on no GPU"),
    ],
)
def test_cuda_array_that_is_refused(fields, message):
    """What DLPack refuses is refused here as well."""
    array = CudaArray(GpuArray(np.zeros((2, 3), np.float32)), **fields)
    with pytest.raises(TritonModelException, match=message):
        Tensor.from_dlpack("A", array)


def test_cuda_array_on_another_gpu(writer):
    """Its own GPU is used, and no other one: a context takes some hundred megabytes of each."""
    contents = np.arange(6, dtype=np.float32)
    array = CudaArray(GpuArray(contents, gpu=1))
    tensor = Tensor.from_dlpack("OUT", array)
    assert tensor.__dlpack_device__() == (2, 1)
    assert written(writer, tensor) == contents.tobytes()
    assert list(gpus.opened) == [1]


def test_cuda_array_without_elements():
    """It lies nowhere, and its strides say nothing."""
    array = CudaArray(GpuArray(np.zeros((0, 3), np.float32)), data=(0, False), strides=(1, 1))
    assert Tensor.from_dlpack("A", array).as_numpy().shape == (0, 3)


def test_bfloat16_has_no_cuda_array():
    """The protocol has no type for it. Tensors in main memory have no such attribute."""
    tensor = Tensor.from_dlpack("A", GpuArray(np.zeros(4, np.uint16), datatype="BF16"))
    assert not hasattr(tensor, "__cuda_array_interface__")
    assert not hasattr(Tensor("A", np.zeros(4)), "__cuda_array_interface__")


def test_more_than_two_gib():
    """The size is an exact number; nothing is allocated."""
    imported = dlpack.ImportedTensor(1 << 40, (3, 1 << 31), "FP64", None, 0)
    assert GpuTensor("A", imported)._on_gpu.nbytes == 3 << 34


def test_input_of_a_call(writer):
    """Another model reads main memory: small contents are in the message, large ones in the response region."""
    write, region = writer
    small, large = np.arange(4, dtype=np.float32), np.arange(100_000, dtype=np.float32)
    regions = Regions(region, None)
    slot, ((_, _, _, at, size, *_),) = write.place([Tensor.from_dlpack("IN", GpuArray(small))], regions)
    assert (at, size) == (small.tobytes(), small.nbytes)
    slot, ((_, _, _, at, size, *_),) = write.place([Tensor.from_dlpack("IN", GpuArray(large))], regions)
    assert slot >= 0
    assert bytes(region.view[at : at + size]) == large.tobytes()


@pytest.mark.parametrize("count", [4, 100_000])
def test_gpu_that_fails(writer, machine, count):
    """The response is an error with the driver's reason, and the next one is not."""
    contents = np.zeros(count, np.float32)
    tensor = Tensor.from_dlpack("OUT", GpuArray(contents))
    for call in ("settle", "read"):
        with machine.failing(**{call: "CUDA_ERROR_NOT_SUPPORTED"}):
            with pytest.raises(TritonModelException, match="'OUT' cannot be read from GPU 0: CUDA_ERROR_NOT_SUPPORTED"):
                tensor.as_numpy()
            kind, *rest = writer[0].write(InferenceResponse([tensor]), {"OUT"})
        assert kind != OK
        assert writer[0].free_bytes == writer[1].limit
        assert "CUDA_ERROR_NOT_SUPPORTED" in str(rest)
    assert written(writer, tensor) == contents.tobytes()


def test_gpu_that_is_not_there():
    """The refusal is Triton's; its cause says why."""
    array = GpuArray(np.zeros(1, np.float32))
    array.device = 2
    with pytest.raises(TritonModelException, match="DLDevice type 2 is not support by Python backend") as caught:
        Tensor.from_dlpack("A", array)
    assert "invalid device ordinal" in str(caught.value.__cause__)
