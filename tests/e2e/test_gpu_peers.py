# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that go from the GPU of one model to that of another one, on GPUs of the stand-in, with real servers.

Where nothing may pass main memory, all copies to and from it fail: those of the brokers, and those of models but for
what their framework does itself.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException

from tests.e2e.harness.frameworks import STAND_IN_ARRAY
from tests.e2e.harness.gpu_models import NOTE, check_kept, infer
from tests.e2e.harness.gpu_regions import HTTP, Region, leased, lose_broker, on_gpu, to_gpu
from tests.e2e.harness.models import parameters
from tests.e2e.harness.waiting import open_gate
from tests.plugins.gpus import TWO_GPUS, TWO_PEERS

UUIDS = "GPU-1", "GPU-2"
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] }
instance_group { kind: KIND_GPU gpus: [ GPU ] }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""
COMMON = (
    STAND_IN_ARRAY
    + NOTE
    + '''
def here(tensor, name="seen"):
    """The tensor as an array of the framework. Notes where it was."""
    note(tensor, name)
    return make(tensor.as_numpy()) if tensor.is_cpu() else take(tensor)

def response(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", array)])

class OnItsGpu:
    def initialize(self, args):
        use(int(args["model_instance_device_id"]))
'''
)
# As Triton's backend of vLLM does.
RESTRICTS_ITSELF = 'os.environ["CUDA_VISIBLE_DEVICES"] = args["model_instance_device_id"]'
DOUBLE = (
    COMMON
    + """
class TritonPythonModel(OnItsGpu):
    kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            if request.request_id() == "check":
                contents = np.concatenate([each.as_numpy() for each in self.kept])
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", contents)]))
                continue
            if request.request_id() == "keep":
                self.kept.append(tensor)
            array = here(tensor)
            if request.request_id() == "die":
                os._exit(1)
            responses.append(response(times(array, 2)))
        return responses
"""
)
# Two responses, of which the second one has no tensor on a GPU and must not overtake the first one.
STREAM = (
    COMMON
    + """
class TritonPythonModel(OnItsGpu):
    def execute(self, requests):
        for request in requests:
            sender, array = request.get_response_sender(), here(request.inputs()[0])
            sender.send(response(times(array, 2)))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array.read() * 3)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
# Makes a tensor of its input, and calls the model that the id of the request names with it. It gives the answer to
# another model after a wait.
CALL = (
    COMMON
    + """
class TritonPythonModel(OnItsGpu):
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        callee, _, id = request.request_id().partition(" ")
        tensor = request.inputs()[0]
        array = here(tensor)
        if id != "pass":
            tensor = pb_utils.Tensor.from_dlpack("IN", times(array, 5))
        call = pb_utils.InferenceRequest(
            model_name=callee, requested_output_names=["OUT"], inputs=[tensor], request_id=id
        )
        if callee == "stream":
            found = [here(each.output_tensors()[0], "back").read() for each in call.exec(decoupled=True)
                     if each.output_tensors()]
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(found))])
        answer = call.exec()
        if id == "wait":  # and hand the tensor on
            gate = os.path.join(os.path.dirname(__file__), "gate")
            os.mkfifo(gate)
            open(gate).close()
            tensor = answer.output_tensors()[0]
            tensor._name = "IN"
            call = pb_utils.InferenceRequest(model_name="again0", requested_output_names=["OUT"], inputs=[tensor])
            answer = call.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return response(times(here(answer.output_tensors()[0], "back"), 7))
"""
)
STEP = """
step {{
  model_name: "{}" model_version: -1 input_map {{ key: "IN" value: "{}" }} output_map {{ key: "OUT" value: "{}" }}
}}
"""


def ensemble(*steps):
    """The configuration of an ensemble, of steps that are a model, its input and its output."""
    outputs = [step[2] for step in steps if step[2].startswith("OUT")]
    tensors = "".join(f'output {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }}\n' for name in outputs)
    given = 'input { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] }\n'
    made = "\n".join(STEP.format(*step) for step in steps)
    return f'platform: "ensemble"\n{given}{tensors}ensemble_scheduling {{\n{made}\n}}'


@pytest.fixture(scope="module")
def machine(machine):
    """A machine with two GPUs that have access to each other."""
    machine.describe(*TWO_PEERS)
    return machine


@pytest.fixture(scope="module")
def repository(write_model, tmp_path_factory):
    """The models. Those that end in 0 and 1 are on these GPUs."""
    folder = tmp_path_factory.mktemp("models")
    for gpu in ("0", "1"):
        config = CONFIG.replace("GPU ]", f"{gpu} ]")
        write_model(folder, f"double{gpu}", DOUBLE, config)
        write_model(folder, f"again{gpu}", DOUBLE, config)
        write_model(folder, f"call{gpu}", CALL, config)
    on_1 = CONFIG.replace("GPU ]", "1 ]")
    restricted = RESTRICTS_ITSELF.join(DOUBLE.split('use(int(args["model_instance_device_id"]))'))
    write_model(folder, "restricted", restricted, on_1)
    write_model(folder, "own", DOUBLE, on_1 + parameters(VISIBLE_GPUS="own"))
    write_model(
        folder, "stream", STREAM, CONFIG.replace("GPU ]", "1 ]") + "model_transaction_policy { decoupled: true }"
    )
    write_model(
        folder, "there_and_back", None, ensemble(("double0", "IN", "a"), ("double1", "a", "b"), ("again0", "b", "OUT"))
    )
    write_model(
        folder,
        "two_readers",
        None,
        ensemble(("double0", "IN", "a"), ("double1", "a", "OUT1"), ("again1", "a", "OUT2"), ("again0", "a", "OUT3")),
    )
    return folder


@pytest.fixture
def between_gpus(server, machine, region):
    """`between_gpus(model, array, id, devices)`: the output of a request whose tensors never lie in main memory.

    Its client has memory for the input and the output on these GPUs.
    """

    def infer(model, array, id="", devices=(0, 0)):
        given, got = (region(HTTP, array.nbytes, device) for device in devices)
        given.put(array)
        refused = "CUDA_ERROR_NOT_SUPPORTED"
        with closing(server.client()) as client, machine.failing(read=refused, write=refused):
            client.infer(model, [on_gpu(HTTP, array, given)], outputs=[to_gpu(HTTP, got, array.nbytes)], request_id=id)
        return got.get(array)

    return infer


@pytest.mark.parametrize("callee", ["double1", "restricted", "own"])
@pytest.mark.parametrize("count", [4, 3_000_000], ids=["small", "large"])
def test_calls(between_gpus, seen, count, callee):
    """The input and the output of a call go from GPU to GPU, and nothing of it to main memory.

    Whatever number the GPU of the callee has in its process.
    """
    array = np.arange(count)
    for _ in range(3):
        assert_array_equal(between_gpus("call0", array, callee), array * 70)
    assert (seen("call0"), seen(callee), seen("call0", "back")) == ("GGG", "GGG", "GGG")


def test_ensembles(between_gpus, seen):
    """So do tensors between the steps of an ensemble."""
    array = np.arange(100_000)
    for _ in range(3):
        assert_array_equal(between_gpus("there_and_back", array), array * 8)
    assert (seen("double0"), seen("double1"), seen("again0")) == ("GGG", "GGG", "GGG")


@pytest.mark.parametrize("count", [3, 3_000_000], ids=["small", "large"])
@pytest.mark.parametrize(("model", "devices"), [("double1", (0, 0)), ("double0", (1, 0)), ("double0", (0, 1))])
def test_memory_of_clients(between_gpus, seen, model, devices, count):
    """The input of a client goes from its GPU to that of the model, and the output to that of the client."""
    array = np.arange(count)
    for add in range(3):
        assert_array_equal(between_gpus(model, array + add, devices=devices), (array + add) * 2)
    assert seen(model) == "GGG"


def test_memory_of_clients_of_ensembles(between_gpus, seen):
    """So do inputs and outputs of ensembles, whose first and last step are on another GPU than the client."""
    array = np.arange(1000)
    assert_array_equal(between_gpus("there_and_back", array, devices=(1, 1)), array * 8)
    assert (seen("double0"), seen("double1"), seen("again0")) == ("G", "G", "G")


def test_input_of_a_client_that_a_model_passes_on(between_gpus, seen):
    """A model that reads the memory of a client where it is hands it to one on another GPU."""
    array = np.arange(1000)
    assert_array_equal(between_gpus("call0", array, "double1 pass"), array * 14)
    assert (seen("call0"), seen("double1")) == ("G", "G")


def test_memory_of_clients_goes_back(server, region, goes_back):
    """What is leased for copies of client memory is free afterwards."""
    array = np.arange(3_000_000)  # more than a chunk
    given, got = region(HTTP, array.nbytes), region(HTTP, array.nbytes)
    given.put(array)

    def infer(_):
        with closing(server.client()) as client:
            client.infer("double1", [on_gpu(HTTP, array, given)], outputs=[to_gpu(HTTP, got, array.nbytes)])

    infer(0)
    with goes_back(), ThreadPoolExecutor(4) as threads:
        list(threads.map(infer, range(8)))
    assert_array_equal(got.get(array), array * 2)


def test_two_readers_on_one_gpu(server, seen):
    """All readers of a tensor read it on their GPU, one of them where it was made."""
    array = np.arange(1000)
    answer = server.infer("two_readers", {"IN": array})
    for name in ("OUT1", "OUT2", "OUT3"):
        assert_array_equal(answer.as_numpy(name), array * 4)
    assert (seen("double1"), seen("again1"), seen("again0")) == ("G", "G", "G")


def test_streams(server, seen):
    """Responses of a decoupled model reach the caller in their order, also if only the first one is copied."""
    array = np.arange(1000)
    found = infer(server, "call0", array, "stream")
    assert_array_equal(found, np.concatenate([array * 10, array * 15]))
    assert seen("call0", "back") == "GC"


def test_kept_inputs(server):
    """A copy stays as it is for as long as the model keeps it."""
    check_kept(server, "call0", "double1", 5)


@pytest.fixture
def goes_back(server, wait_until):
    """`with goes_back()`: memory of GPUs that is leased meanwhile goes back."""

    @contextmanager
    def check():
        before = [leased(server, uuid) for uuid in UUIDS]
        yield
        wait_until(lambda: all(leased(server, uuid) <= bytes for uuid, bytes in zip(UUIDS, before, strict=True)))

    return check


def test_many_at_once(server, goes_back):
    """Requests at the same time have their own tensors, and all of their memory is free afterwards."""
    # Far more than what is kept, if their memory stayed.
    arrays = [np.arange(200_000) + number for number in range(40)]
    infer(server, "there_and_back", arrays[0])
    infer(server, "call1", arrays[0], "double0")
    with goes_back(), ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda array: infer(server, "there_and_back", array), arrays))
        calls = list(threads.map(lambda array: infer(server, "call1", array, "double0"), arrays))
    for array, answer, called in zip(arrays, answers, calls, strict=True):
        assert_array_equal(answer, array * 8)
        assert_array_equal(called, array * 70)


def test_reader_dies(server, goes_back):
    """What dies while it reads a copy leaves nothing behind, also no memory: the next requests are answered."""
    array = np.arange(3_000_000)  # more than a chunk: each tensor has its own

    def die():
        with pytest.raises(InferenceServerException, match="It was lost while it ran this request"):
            infer(server, "call0", array, "double1 die")
        assert_array_equal(infer(server, "call0", array, "double1"), array * 70)

    die()  # the next process keeps the first memory that it leases
    with goes_back():
        die()
        die()


@pytest.mark.parametrize("ordinal", [0, 1])
def test_broker_is_lost(server, repository, wait_until, ordinal):
    """A copy is lost with the broker of its GPU, and a tensor that was copied is not."""
    array, gate = np.arange(1000), repository / "call0" / "1" / "gate"
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(infer, server, "call0", array, "double1 wait")
        wait_until(gate.exists)
        lose_broker(server, ordinal)
        open_gate(gate)
        if ordinal:
            assert_array_equal(pending.result(), array * 140)
        else:
            with pytest.raises(InferenceServerException, match="the broker of GPU 0 was lost"):
                pending.result()
    assert_array_equal(infer(server, "call0", array, "double1"), array * 70)
    assert_array_equal(infer(server, "there_and_back", array), array * 8)


@pytest.mark.parametrize(
    ("described", "options"),
    [
        (TWO_GPUS, ()),
        (TWO_PEERS, ("--cuda-memory-pool-byte-size=1:0",)),
        (TWO_PEERS, ("--enable-peer-access=false",)),
    ],
    ids=["no access", "no pool", "forbidden"],
)
def test_through_main_memory(serving, machine, gpus, repository, seen, described, options):
    """Where there is no way from GPU to GPU, tensors go through main memory, and no request fails."""
    machine.describe(*described)
    array = np.arange(1000)
    try:
        with serving(repository, "--allow-client-shm=true", *options) as server, closing(server.client()) as client:
            given, got = (Region(server, HTTP, gpus[0], array.nbytes) for _ in range(2))
            given.put(array)
            for _ in range(3):
                got.put(array)
                client.infer("double1", [on_gpu(HTTP, array, given)], outputs=[to_gpu(HTTP, got, array.nbytes)])
                assert_array_equal(got.get(array), array * 2)
                assert_array_equal(infer(server, "call0", array, "double1"), array * 70)
                assert_array_equal(infer(server, "there_and_back", array), array * 8)
            given.end()
            got.end()
            assert server.log.count("Tensors go from GPU 0 to GPU 1 through main memory") == (not options)
    finally:
        machine.describe(*TWO_PEERS)
    assert set(seen("double1")) == {"C"}


# Waits in the requests with the id "wait", and wants the inputs of those with the id "read" on its GPU. It leaves no
# files in its folder, which would be a reason to load it again.
GATED = (
    COMMON
    + """
class TritonPythonModel(OnItsGpu):
    def execute(self, requests):
        (request,) = requests
        tensor = request.inputs()[0]
        if request.request_id() == "wait":
            os.mkfifo("GATE")
            open("GATE").close()
        elif request.request_id() == "read":
            return [response(times(take(tensor), 2))]
        return [response(times(make(tensor.as_numpy()), 2))]
"""
)


def test_model_moves_while_requests_queue(serving, machine, write_model, tmp_path, wait_until):
    """Calls with inputs on the former GPU, which queue, are executed on the new one."""
    gate, models = tmp_path / "gate", tmp_path / "models"
    config = CONFIG.replace("GPU ]", "0 ]")
    write_model(models, "gated", GATED.replace("GATE", str(gate)), config)
    write_model(models, "call", CALL, config.replace("gpus:", "count: 4 gpus:"))
    path = models / "gated" / "config.pbtxt"
    arrays = [np.arange(1000) + number for number in range(4)]
    with (
        serving(models, "--model-control-mode=explicit", "--load-model=*") as server,
        ThreadPoolExecutor(6) as threads,
        closing(server.client()) as client,
    ):
        held = [threads.submit(infer, server, "gated", arrays[0], "wait")]
        wait_until(gate.exists)
        held.append(threads.submit(infer, server, "gated", arrays[0]))  # which the process has already
        wait_until(lambda: pending(server, "gated") == 1)
        calls = [threads.submit(infer, server, "call", array, "gated read") for array in arrays]
        wait_until(lambda: pending(server, "gated") == 1 + len(calls))
        path.write_text(path.read_text().replace("gpus: [ 0 ]", "gpus: [ 1 ]"))
        client.load_model("gated")
        for array, call in zip(arrays, calls, strict=True):
            assert_array_equal(call.result(), array * 70)
        open_gate(gate)
        for each in held:
            assert_array_equal(each.result(), arrays[0] * 2)
        assert not server.log.count("main memory")


def pending(server, model):
    """How many requests wait for a model."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return float(re.search(f'^nv_inference_pending_request_count{{model="{model}",version="1"}} (.*)$', page, re.M)[1])
