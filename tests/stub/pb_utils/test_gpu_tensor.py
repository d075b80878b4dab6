# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs of the stand-in, through DLPack."""

import json
import os

import numpy as np
import pytest

from pyruntime.stub import gpus
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils import InferenceResponse, Tensor, TritonModelException, dlpack
from pyruntime.stub.pb_utils.gpu_tensor import GpuTensor
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils.gpu.inventory import STAND_IN
from pyruntime.utils.gpu.visible import VISIBLE
from pyruntime.utils.messages import OK
from pyruntime.utils.regions import Region


class GpuArray:
    """An array of a framework on a GPU: what is done to it takes place later."""

    def __init__(self, contents, gpu=0, datatype="FP32"):
        self.device = gpu
        self.datatype = datatype
        self.shape = contents.shape
        self.gpu = gpu_of(gpu)
        self.pointer = self.gpu.allocate(max(contents.nbytes, 1))
        self.set(contents)

    def set(self, contents):
        if contents.nbytes:
            self.gpu.enqueue(lambda: self.gpu.write(self.pointer, contents.tobytes()))

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, stream=None):
        return dlpack.to_capsule(self, self.pointer, self.shape, self.datatype, self.device)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A function that writes the machine of the stand-in, which has two GPUs."""
    path = tmp_path / "gpus.json"
    monkeypatch.setenv(STAND_IN, str(path))
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(gpus, "_gpus", {})

    def write(**faults):
        path.write_text(json.dumps({"gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}], "faults": faults}))

    write()
    return write


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
        machine(**{call: "CUDA_ERROR_UNKNOWN"})
        with pytest.raises(TritonModelException, match="Tensor 'OUT' cannot be read from GPU 0: CUDA_ERROR_UNKNOWN"):
            tensor.as_numpy()
        kind, *rest = writer[0].write(InferenceResponse([tensor]), {"OUT"})
        assert kind != OK
        assert writer[0].free_bytes == writer[1].limit
        assert "CUDA_ERROR_UNKNOWN" in str(rest)
    machine()
    assert written(writer, tensor) == contents.tobytes()


def test_gpu_that_is_not_there():
    """The refusal is Triton's; its cause says why."""
    array = GpuArray(np.zeros(1, np.float32))
    array.device = 2
    with pytest.raises(TritonModelException, match="DLDevice type 2 is not support by Python backend") as caught:
        Tensor.from_dlpack("A", array)
    assert "invalid device ordinal" in str(caught.value.__cause__)
