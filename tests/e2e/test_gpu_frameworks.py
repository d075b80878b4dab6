# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU, from client to model to model and back, by each framework.

On machines without a GPU a small framework on the stand-in takes their place; the others are marked `gpu`.
"""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pyruntime.utils.gpu.cuda import CudaGpu
from pyruntime.utils.gpu.driver import GpuMissingError
from pyruntime.utils.gpu.inventory import STAND_IN
from pyruntime.utils.gpu.stand_in import StandInGpu
from pyruntime.utils.gpu.visible import VISIBLE
from tests.e2e.harness.frameworks import FRAMEWORKS, STAND_IN_ARRAY

GROUP = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n"
READS_GPU = GROUP + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }\n'
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
# Takes its input from wherever it lies: small ones of clients are in main memory.
COMMON = """
def input_of(request):
    tensor = request.inputs()[0]
    return make(tensor.as_numpy()) if tensor.is_cpu() else take(tensor)

def answer(array, **parameters):
    output = pb_utils.Tensor.from_dlpack("OUT", array)
    assert not output.is_cpu() and output.__dlpack_device__() == (2, 0)
    return pb_utils.InferenceResponse([output], parameters=parameters)
"""
# Trebles its input, and says where that was.
TREBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            answer(times(input_of(request), 3), was_cpu=request.inputs()[0].is_cpu()) for request in requests
        ]
"""
# Takes its own tensor again, as another part of a model would, and hands it on to itself.
COMPUTE = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensor = pb_utils.Tensor.from_dlpack("any", times(make(request.inputs()[0].as_numpy()), 3))
        assert not tensor.is_cpu() and tensor.__dlpack_device__() == (2, 0)
        output = pb_utils.Tensor.from_dlpack("OUT", times(take(tensor), 2))
        assert np.array_equal(tensor.as_numpy() * 2, output.as_numpy())
        return pb_utils.InferenceResponse([output])
"""
# As "treble" of another one, whose steps are in one process after the other.
CHAIN = """
platform: "ensemble"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    { model_name: "treble" model_version: -1
      input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "A" } },
    { model_name: "again" model_version: -1
      input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "OUT" } }
  ]
}
"""


class OnStandIn:
    """A machine of the stand-in."""

    code = STAND_IN_ARRAY

    def __init__(self, folder):
        self._path = folder / "gpus.json"
        self.describe()
        self.gpu = StandInGpu(str(self._path))

    def describe(self, **faults):
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"gpus": [{"uuid": "GPU-1"}], "faults": faults}))
        new.replace(self._path)

    def variables(self):
        return {STAND_IN: str(self._path)}


class OnGpu:
    """A machine with a GPU."""

    def __init__(self, framework):
        pytest.importorskip(framework, reason=f"{framework} is not installed")
        self.code = FRAMEWORKS[framework]
        try:
            self.gpu = CudaGpu()
        except GpuMissingError as exc:
            pytest.skip(f"no GPU: {exc}")

    def variables(self):
        return {}


@pytest.fixture(
    scope="module", params=["stand-in", *[pytest.param(name, marks=pytest.mark.gpu) for name in FRAMEWORKS]]
)
def machine(request, tmp_path_factory):
    """The machine, and the framework of its models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(STAND_IN, raising=False)
        patch.delenv(VISIBLE, raising=False)
        is_stand_in = request.param == "stand-in"
        found = OnStandIn(tmp_path_factory.mktemp("machine")) if is_stand_in else OnGpu(request.param)
        for name, value in found.variables().items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def server(machine, serving, write_model, tmp_path_factory):
    """A server with models of this framework on the first GPU."""
    repository = tmp_path_factory.mktemp("models")

    def write(name, code, group):
        write_model(repository, name, machine.code + COMMON + code, CONFIG, group)

    write("treble", TREBLE, READS_GPU)
    write("again", TREBLE, READS_GPU)
    write("from_main_memory", TREBLE, GROUP)
    write("compute", COMPUTE, GROUP)
    write_model(repository, "chain", None, CHAIN)
    with serving(repository) as started:
        yield started


SIZES = pytest.mark.parametrize("count", [1, 1000, 300_000])


@SIZES
@pytest.mark.parametrize("name", ["treble", "from_main_memory"])
def test_in_and_out(server, name, count):
    """Arrays of a framework on the GPU are outputs, and clients have them in main memory."""
    array = np.arange(count)
    assert_array_equal(server.infer(name, {"IN": array}).as_numpy("OUT"), array * 3)


@SIZES
def test_out_and_in_again(server, count):
    """An array goes out as a tensor, and in again, within one process."""
    array = np.arange(count)
    assert_array_equal(server.infer("compute", {"IN": array}).as_numpy("OUT"), array * 6)


@SIZES
def test_ensemble(server, count):
    """Between the steps of an ensemble, too."""
    array = np.arange(count)
    assert_array_equal(server.infer("chain", {"IN": array}).as_numpy("OUT"), array * 9)
