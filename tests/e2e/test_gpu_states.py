# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""States of sequences that stay on the GPU of their model, on GPUs of the stand-in, with a real server."""

import os
import signal

import numpy as np
import pytest

from .harness.frameworks import STAND_IN_ARRAY
from .harness.gpu_models import NOTE
from .harness.gpu_regions import leased, lose_broker

COUNT = 100_000
CONFIG = f"""
backend: "python"
input {{ name: "IN" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }}
instance_group {{ kind: KIND_GPU gpus: [ 0 ] }}
sequence_batching {{
  max_sequence_idle_microseconds: 100000000
  oldest {{ max_candidate_sequences: 8 }}
  state [
    {{ input_name: "S" output_name: "NEXT" data_type: TYPE_INT64 dims: [ {COUNT} ] }},
    {{ input_name: "N" output_name: "COUNT" data_type: TYPE_INT64 dims: [ 1 ] }}
  ]
}}
"""
READS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
# Adds its input to a large state on the GPU, and counts requests in a small one in main memory. Notes where the former
# was.
SUM = (
    STAND_IN_ARRAY
    + NOTE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        state, value = tensors["S"], int(tensors["IN"].as_numpy()[0])
        note(state)
        before = state.as_numpy() if state.is_cpu() else back(take(state))
        if request.request_id() == "keep":
            self.kept.append(state)
        if request.request_id() == "drop":
            self.kept.clear()
        if value < 0:
            raise ValueError("a number is negative")
        found = [int(each.as_numpy()[-1]) for each in self.kept]
        count = tensors["N"].as_numpy() + 1
        outputs = [
            pb_utils.Tensor("OUT", np.array([int(before[0]) + value, int(before[-1]) + value, int(count[0]), *found])),
            pb_utils.Tensor.from_dlpack("NEXT", make(before + value)),
            pb_utils.Tensor("COUNT", count),
        ]
        return pb_utils.InferenceResponse(outputs)
"""
)


@pytest.fixture(scope="module")
def repository(write_model, tmp_path_factory):
    """The models."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "there", SUM, CONFIG + READS)
    write_model(folder, "here", SUM, CONFIG)
    return folder


def ask(server, name, id, value, start=False, end=False, request_id=""):
    flags = {"sequence_id": id, "sequence_start": start, "sequence_end": end, "request_id": request_id}
    return server.infer(name, {"IN": np.array([value])}, **flags).as_numpy("OUT").tolist()


def test_a_state_stays(server, seen, machine):
    """The next request reads it where it is, each sequence its own; it is never in main memory, and is freed."""
    with machine.failing(read="CUDA_ERROR_NOT_SUPPORTED"):
        assert ask(server, "there", 1, 5, start=True) == [5, 5, 1]
        assert ask(server, "there", 2, 100, start=True) == [100, 100, 1]
        for count in range(2, 30):
            assert ask(server, "there", 1, 1) == [4 + count, 4 + count, count]
        assert ask(server, "there", 2, 1) == [101, 101, 2]
    assert seen("there") == "CC" + "G" * 29


def test_a_failure(server, seen):
    """A request that fails leaves the state where and as it was."""
    assert ask(server, "there", 3, 5, start=True) == [5, 5, 1]
    assert server.refusal("there", {"IN": np.array([-1])}, sequence_id=3)[0] == 500
    assert ask(server, "there", 3, 5, end=True) == [10, 10, 2]


def test_a_state_that_is_kept(server):
    """A state that the model keeps does not change when the sequence has others, nor when it has ended."""
    ask(server, "there", 4, 5, start=True)
    ask(server, "there", 4, 5, request_id="keep")
    for _ in range(7):
        assert ask(server, "there", 4, 1)[-1] == 5
    assert ask(server, "there", 4, 1, end=True)[-1] == 5
    assert ask(server, "there", 5, 7, start=True) == [7, 7, 1, 5]
    assert ask(server, "there", 5, 7, end=True, request_id="drop") == [14, 14, 2]


def test_main_memory(server, seen):
    """A model that has its inputs in main memory has its states there, too."""
    assert [ask(server, "here", 1, 5, start=True), ask(server, "here", 1, 5)] == [[5, 5, 1], [10, 10, 2]]
    assert seen("here") == "CC"


def test_the_end_of_the_stub(server, wait_until):
    """The memory of states is given back when their stub has died, and sequences begin again."""
    ask(server, "there", 6, 5, start=True)
    assert leased(server, "GPU-1") > 0
    old = server.stub("there_0_0")
    os.kill(old.pid, signal.SIGKILL)
    wait_until(lambda: leased(server, "GPU-1") == 0)
    assert server.refusal("there", {"IN": np.array([1])}, sequence_id=6)[0] == 400
    assert [ask(server, "there", 6, 5, start=True), ask(server, "there", 6, 5)] == [[5, 5, 1], [10, 10, 2]]


def test_the_end_of_the_broker(server, wait_until):
    """A state whose memory is lost fails the requests that read it, with what was lost; a sequence may begin again."""
    ask(server, "there", 7, 5, start=True)
    lose_broker(server)
    status, message = server.refusal("there", {"IN": np.array([1])}, sequence_id=7)
    assert (status, "the broker of GPU 0 was lost" in message) == (503, True)
    assert [ask(server, "there", 7, 5, start=True), ask(server, "there", 7, 5)] == [[5, 5, 1], [10, 10, 2]]
