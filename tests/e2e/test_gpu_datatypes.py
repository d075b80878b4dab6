# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU that numpy has no datatype for, and those of more than 2 GiB, from model to model, by torch.

On machines without a GPU a small framework on the stand-in takes its place, with smaller tensors and without float8.
"""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException

from tests.e2e.harness.frameworks import STAND_IN_ARRAY
from tests.e2e.harness.gpu_machines import GROUP, READS_GPU, machine_with
from tests.e2e.harness.gpu_regions import BOTH, infer, on_gpu
from tests.plugins.gpus import StandInMachine

# Each defines `encode(values, kind)`, which makes an array on the GPU of numpy's float32; `decode(array, kind)`;
# `pattern(count)`, bytes on the GPU; `take(tensor)`; `plus_one(array)`; `is_equal(one, other)`; and `total(array)`.
STAND_IN = (
    STAND_IN_ARRAY
    + """
NAMES.update({np.dtype(np.uint16): "BF16", np.dtype(np.uint8): "UINT8"})

def encode(values, kind): return make((values.view(np.uint32) >> 16).astype(np.uint16))
def decode(array, kind): return (back(array).astype(np.uint32) << 16).view(np.float32)
def pattern(count): return make(np.resize(np.arange(251, dtype=np.uint8), count))
def plus_one(array): return make(back(array) + np.uint8(1))
def is_equal(one, other): return np.array_equal(back(one), back(other))
def total(array): return int(back(array).sum(dtype=np.int64))
"""
)
TORCH = """
import torch
KINDS = {"BF16": torch.bfloat16, "E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
take = torch.from_dlpack

def encode(values, kind):
    array = torch.from_numpy(values).cuda().to(KINDS[kind])
    try:
        array.__dlpack__()
    except (BufferError, RuntimeError, ValueError) as exc:  # as float8 in older versions
        raise pb_utils.TritonModelException(f"torch does not export it: {exc}")
    return array

def decode(array, kind): return array.view(KINDS[kind]).float().cpu().numpy()
def pattern(count): return torch.arange(251, dtype=torch.uint8, device="cuda").repeat(count // 251 + 1)[:count]
def plus_one(array): return array + 1
def is_equal(one, other): return torch.equal(one, other)
def total(array): return int(array.sum(dtype=torch.int64))
"""
CALL = """
def call(name, array, id=""):
    tensor = pb_utils.Tensor.from_dlpack("IN", array)
    assert not tensor.is_cpu()
    names = ["OUT"]
    request = pb_utils.InferenceRequest(model_name=name, requested_output_names=names, inputs=[tensor], request_id=id)
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    output = response.output_tensors()[0]
    assert not output.is_cpu(), "the output has left the GPU"
    return output
"""
# Doubles its input in its own datatype, which the id of the request names.
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request.request_id(), request.inputs()[0]) for request in requests]

    def one(self, kind, tensor):
        assert not tensor.is_cpu(), "the input has left the GPU"
        doubled = encode(decode(take(tensor), kind) * 2, kind)
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", doubled)])
"""
# Has its input doubled by the model of a datatype.
CALLER = (
    CALL
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request.request_id(), request.inputs()[0].as_numpy()) for request in requests]

    def one(self, kind, values):
        name = "double_bf16" if kind == "BF16" else "double_fp8"
        output = decode(take(call(name, encode(values, kind), kind)), kind)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output)])
"""
)
# Adds 1 to each byte.
ADD = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request.inputs()[0]) for request in requests]

    def one(self, tensor):
        assert not tensor.is_cpu(), "the input has left the GPU"
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", plus_one(take(tensor)))])
"""
# Has another model add to so many bytes, and tells the sum of them all.
LARGE = (
    CALL
    + """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(int(request.inputs()[0].as_numpy()[0])) for request in requests]

    def one(self, count):
        held = pattern(count)
        output = call("add", held)
        assert is_equal(take(output), plus_one(held))
        in_main_memory = output.as_numpy()
        assert (in_main_memory[-251:] == (np.arange(count - 251, count) % 251 + 1)).all()
        found = np.array([total(take(output)), in_main_memory.size])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)])
"""
)
# Tells the sum and the number of the bytes of its input.
COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request.inputs()[0]) for request in requests]

    def one(self, tensor):
        assert not tensor.is_cpu(), "the input has left the GPU"
        found = np.array([total(take(tensor)), tensor.shape()[0]])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", found)])
"""
# No multiple of the pattern, and beyond what 32 bits count.
LARGE_BYTES = (1 << 32) + 12_345
# There are six such tensors at a time. torch keeps what it frees.
FREE_BYTES = 40 << 30


@pytest.fixture(scope="module", params=["stand-in", pytest.param("torch", marks=pytest.mark.gpu)])
def machine(request, tmp_path_factory):
    """The machine, and the framework of its models."""
    with machine_with(request.param, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def repository(machine, write_model, tmp_path_factory):
    """These models on the first GPU."""
    folder = tmp_path_factory.mktemp("models")
    framework = STAND_IN if isinstance(machine, StandInMachine) else TORCH

    def write(name, code, given, made, group):
        config = f"""
            backend: "python"
            input {{ name: "IN" data_type: TYPE_{given} dims: [ -1 ] }}
            output {{ name: "OUT" data_type: TYPE_{made} dims: [ -1 ] }}
        """
        write_model(folder, name, framework + code, config, group)

    write("caller", CALLER, "FP32", "FP32", GROUP)
    write("double_bf16", DOUBLE, "BF16", "BF16", READS_GPU)
    write("double_fp8", DOUBLE, "UINT8", "UINT8", READS_GPU)
    write("large", LARGE, "INT64", "INT64", GROUP)
    write("add", ADD, "UINT8", "UINT8", READS_GPU)
    write("count", COUNT, "UINT8", "INT64", READS_GPU)
    return folder


@pytest.fixture
def byte_size(machine, gpus):
    """The size of a large tensor on this machine."""
    if isinstance(machine, StandInMachine):
        return 1_234_567
    free = gpus[0].properties().free_bytes
    if free < FREE_BYTES:
        pytest.skip(f"{free >> 20} MiB of the GPU are free, and {FREE_BYTES >> 20} are needed")
    return LARGE_BYTES


@pytest.mark.parametrize("kind", ["BF16", "E4M3", "E5M2"])
def test_datatypes(server, machine, kind):
    """Tensors of bfloat16, and of float8 as UINT8 with the same bits, go to a model and back on the GPU."""
    if kind != "BF16" and isinstance(machine, StandInMachine):
        pytest.skip("the stand-in's framework has no float8")
    values = np.resize(np.array([0, 0.5, -1.5, 3, -0.25, 28], np.float32), 100_001)  # exact in all of them
    try:
        result = server.infer("caller", {"IN": values}, request_id=kind)
    except InferenceServerException as exc:
        if "torch does not export it" in str(exc):
            pytest.skip(str(exc))
        raise
    assert_array_equal(result.as_numpy("OUT"), values * 2)


def test_large(server, byte_size):
    """A tensor of more than 4 GiB goes to a model, and back, and can be read in main memory."""
    found = server.infer("large", {"IN": np.array([byte_size])}).as_numpy("OUT")
    assert found.tolist() == [pattern_sum(byte_size) + byte_size, byte_size]


@BOTH
def test_large_memory_of_a_client(server, region, protocol, byte_size):
    """A model reads a client's tensor of more than 4 GiB in place."""
    one = region(protocol, byte_size)
    one.put(np.resize(np.arange(251, dtype=np.uint8), byte_size))
    given = on_gpu(protocol, np.empty(byte_size, np.uint8), one)
    assert infer(server, protocol, "count", [given]).as_numpy("OUT").tolist() == [pattern_sum(byte_size), byte_size]


def pattern_sum(count):
    """The sum of so many bytes that count from 0 to 250, over and over."""
    whole, rest = divmod(count, 251)
    return whole * 250 * 251 // 2 + rest * (rest - 1) // 2
