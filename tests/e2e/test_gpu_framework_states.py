# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""States of sequences of a framework's model that stay on its GPU, on GPUs of the stand-in, with a real server.

The package torch has no GPU here. A small one on the stand-in takes its place, for the code of the backend that reads,
joins and writes tensors.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from .harness.frameworks import STAND_IN_ARRAY
from .harness.gpu_models import NOTE

COUNT = 50_000
CONFIG = f"""
backend: "python"
max_batch_size: 4
input {{ name: "IN" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_INT64 dims: [ 2 ] }}
instance_group {{ kind: KIND_GPU gpus: [ 0 ] }}
sequence_batching {{
  max_sequence_idle_microseconds: 100000000
  oldest {{ max_candidate_sequences: 8 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }}
  state {{ input_name: "S" output_name: "NEXT" data_type: TYPE_INT64 dims: [ {COUNT} ] }}
}}
"""
ALONE = CONFIG.replace(" preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000", "")
READS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
# What the backend uses of torch.
TORCH = '''
class HostTensor:
    is_cuda, dtype = False, "int64"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def to(self, device):
        return GpuTensor(make(self.array))

    def numpy(self):
        return self.array

class GpuTensor:
    is_cuda, dtype = True, "int64"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    def __getitem__(self, rows):
        return GpuTensor(make(np.ascontiguousarray(back(self.array)[rows])))

    def to(self, device):
        return self

    def clone(self):
        return GpuTensor(make(back(self.array)))

    def detach(self):
        return self

    contiguous = detach

    def cpu(self):
        return HostTensor(back(self.array))

    def spoil(self):
        """Write to the memory itself."""
        taken = getattr(self.array, "imported", self.array)
        gpu_of(0).write_by(taken.pointer, bytes(8 * int(np.prod(self.shape))))

class torch:
    bfloat16 = "bfloat16"
    from_numpy = HostTensor

    @staticmethod
    def from_dlpack(tensor):
        return GpuTensor(take(tensor))

    @staticmethod
    def cat(tensors):
        assert all(tensor.is_cuda for tensor in tensors), "tensors of a call are on one device"
        return GpuTensor(make(np.concatenate([back(tensor.array) for tensor in tensors])))
'''
# Adds its input to a large state, writes to the memory of that state, and fails if the input is negative.
SUM = (
    STAND_IN_ARRAY
    + NOTE
    + TORCH
    + """
from pyruntime.backends.pytorch.tensors import TorchArrays
from pyruntime.backends.toolkit.batching import BatchExecutor
from pyruntime.backends.toolkit.settings import read_settings

class TritonPythonModel:
    def initialize(self, args):
        settings = read_settings(json.loads(args["model_config"]))
        arrays = TorchArrays(torch, "cuda:0", states_stay=settings.reads_gpu)
        self.batches = BatchExecutor(self.run, arrays, ["OUT"], True, settings.states)

    def execute(self, requests):
        for request in requests:
            note(pb_utils.get_input_tensor_by_name(request, "S"))
        return self.batches.execute(requests)

    def run(self, inputs, names):
        value, state = (back(inputs[name].array) for name in ("IN", "S"))
        state = state + value
        inputs["S"].spoil()
        if value.min() < 0:
            raise ValueError("a number is negative")
        results = {"OUT": state[:, [0, -1]], "NEXT": state}
        return {name: GpuTensor(make(np.ascontiguousarray(results[name]))) for name in names}
"""
)


@pytest.fixture(scope="module")
def repository(write_model, tmp_path_factory):
    """The models."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "there", SUM, ALONE + READS)
    write_model(folder, "here", SUM, ALONE)
    write_model(folder, "pairs", SUM, CONFIG + READS)
    return folder


def ask(server, name, id, value, start=False):
    result = server.infer(name, {"IN": np.array([[value]])}, sequence_id=id, sequence_start=start)
    return result.as_numpy("OUT").tolist()[0]


def test_a_state_stays_on_the_gpu(server, seen, machine):
    """The broker never copies it to main memory, and a request that fails leaves it as it was."""
    with machine.failing(read="CUDA_ERROR_NOT_SUPPORTED"):
        assert ask(server, "there", 1, 5, start=True) == [5, 5]
        assert ask(server, "there", 2, 100, start=True) == [100, 100]
        assert server.refusal("there", {"IN": np.array([[-1]])}, sequence_id=1)[0] == 500
        for count in range(1, 10):
            assert ask(server, "there", 1, 1) == [5 + count, 5 + count]
        assert ask(server, "there", 2, 1) == [101, 101]
    assert seen("there") == "CC" + "G" * 11


def test_a_model_with_its_inputs_in_main_memory(server, seen):
    """Has its states there, too."""
    assert [ask(server, "here", 1, 5, start=True), ask(server, "here", 1, 5)] == [[5, 5], [10, 10]]
    assert seen("here") == "CC"


def test_states_of_a_batch(server, seen):
    """Those of two sequences are joined and split, also where one of them is new and so in main memory."""
    with ThreadPoolExecutor(2) as clients:
        both = clients.map(lambda id: ask(server, "pairs", id, id, start=True), (1, 2))
        assert list(both) == [[1, 1], [2, 2]]
        again = clients.map(lambda id: ask(server, "pairs", id, 10, start=id == 3), (1, 3))
        assert list(again) == [[11, 11], [10, 10]]
    found = seen("pairs")
    assert (found[:2], sorted(found[2:])) == ("CC", ["C", "G"])
