# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in the memory of clients on GPUs, by Triton's own clients, with GPUs of the stand-in."""

import base64
import os
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from .harness.frameworks import STAND_IN_ARRAY
from .harness.gpu_regions import BOTH, GRPC, HTTP, Region, brokers, client_of, infer, on_gpu, sent, to_gpu
from .harness.models import ECHO, IN_OUT
from .harness.waiting import LIMIT_S

INVALID = "failed to register shared memory region: invalid args"
# Doubles its input, which it may write to.
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            assert request.inputs()[0].is_cpu()
            array *= 2
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""
# Answers three times, each time with one more.
REPEAT = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for add in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + add)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Says in a file that it runs and waits until that is gone.
WAIT = """
class TritonPythonModel:
    def initialize(self, args):
        self.path = args["model_repository"] + "/runs"

    def execute(self, requests):
        with open(self.path, "w"):
            pass
        while os.path.exists(self.path):
            time.sleep(0.001)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""

# Trebles its input on a GPU, in an array of a framework; for the id "call" another model doubles that, too.
ON_GPU = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = make(request.inputs()[0].as_numpy() * 3)
            output = pb_utils.Tensor.from_dlpack("OUT", array)
            assert not output.is_cpu() and output.__dlpack_device__() == (2, 0)
            if request.request_id() == "call":
                input = pb_utils.Tensor.from_dlpack("IN", pb_utils.Tensor.from_dlpack("any", array))
                call = pb_utils.InferenceRequest(model_name="double", requested_output_names=["OUT"], inputs=[input])
                output = call.exec().output_tensors()[0]
                assert output.is_cpu()
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""


@pytest.fixture(scope="module")
def repository(write_model, tmp_path_factory):
    """The models."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE)
    write_model(folder, "echo_bytes", ECHO, IN_OUT.replace("INT64", "STRING"))
    write_model(folder, "repeat", REPEAT, more="model_transaction_policy { decoupled: true }")
    write_model(folder, "wait", WAIT)
    write_model(folder, "on_gpu", STAND_IN_ARRAY + ON_GPU)
    write_model(folder, "cached", ECHO, more="response_cache { enable: true }")
    return folder


@pytest.fixture(scope="module")
def server(serving, machine, repository):
    """A server that takes regions on these GPUs."""
    with serving(repository, "--allow-client-shm=true", "--cache-config=local,size=1048576") as started:
        yield started


def refusal(call, *arguments):
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments)
    return caught.value.message()


@BOTH
@pytest.mark.parametrize("count", [4, 300_000], ids=["small", "large"])
def test_both(server, region, protocol, count):
    """Inputs are read from the GPU, outputs are written there: at any offset, and to no byte beside it."""
    array = np.arange(count)
    one, two = region(protocol, array.nbytes + 8), region(protocol, array.nbytes + 24, 1)
    one.put(array, 8)
    two.put(np.full(two.size, 9, np.uint8))
    infer(
        server,
        protocol,
        "double",
        [on_gpu(protocol, array, one, 8)],
        [to_gpu(protocol, two, array.nbytes + 8, 8)],
    )
    assert_array_equal(two.get(array, 8), array * 2)
    assert_array_equal(one.get(array, 8), array)
    assert (two.get(np.empty(8, np.uint8)) == 9).all()
    assert (two.get(np.empty(16, np.uint8), 8 + array.nbytes) == 9).all()


@BOTH
def test_one_side(server, region, protocol):
    """Only the input lies there, or only the output goes there."""
    array = np.arange(100)
    one = region(protocol, array.nbytes)
    one.put(array)
    result = infer(server, protocol, "double", [on_gpu(protocol, array, one)])
    assert_array_equal(result.as_numpy("OUT"), array * 2)
    infer(server, protocol, "double", [sent(protocol, array + 1)], [to_gpu(protocol, one, array.nbytes)])
    assert_array_equal(one.get(array), (array + 1) * 2)


@BOTH
def test_strings(server, region, protocol):
    """BYTES lie there in their encoded form, and are checked."""
    strings = np.array([b"", b"a", b"x" * 1000], object)
    encoded = np.frombuffer(serialize_byte_tensor(strings).item(), np.uint8)
    one, two = region(protocol, len(encoded)), region(protocol, len(encoded))
    one.put(encoded)
    tensor = on_gpu(protocol, strings, one, datatype="BYTES", size=len(encoded))
    infer(server, protocol, "echo_bytes", [tensor], [to_gpu(protocol, two, len(encoded))])
    assert_array_equal(two.get(encoded), encoded)
    one.put(np.full(4, 255, np.uint8))
    assert "incomplete string data for inference input" in refusal(infer, server, protocol, "echo_bytes", [tensor])


@BOTH
def test_cache(server, region, protocol):
    """Equal requests with other contents have other answers, from the cache or not."""
    array = np.arange(10)
    one = region(protocol, array.nbytes)
    for add in (0, 1, 0, 1):
        one.put(array + add)
        result = infer(server, protocol, "cached", [on_gpu(protocol, array, one)])
        assert_array_equal(result.as_numpy("OUT"), array + add)
    infer(server, protocol, "cached", [sent(protocol, array)], [to_gpu(protocol, one, array.nbytes)])
    assert_array_equal(one.get(array), array)


def test_stream(server, region):
    """Each response of a decoupled model is in its place before the client has it; the last one stays."""
    array = np.arange(1000)
    one = region(GRPC, array.nbytes)
    answers = queue.Queue()
    with closing(server.grpc()) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(
            "repeat",
            [sent(GRPC, array)],
            outputs=[to_gpu(GRPC, one, array.nbytes)],
            enable_empty_final_response=True,
        )
        for _ in range(4):
            _, error = answers.get(timeout=LIMIT_S)
            assert error is None
        client.stop_stream()
    assert_array_equal(one.get(array), array + 2)


@BOTH
def test_wrong_parts(server, region, protocol):
    """A request may only use what the region has, and an output must fit."""
    array = np.arange(10)
    one = region(protocol, array.nbytes)
    message = f"Invalid offset + byte size for shared memory region: '{one.name}'"
    assert refusal(infer, server, protocol, "double", [on_gpu(protocol, array, one, 8)]) == message
    message = f"Invalid offset for shared memory region: '{one.name}'"
    assert refusal(infer, server, protocol, "double", [on_gpu(protocol, array, one, 80)]) == message
    assert refusal(infer, server, protocol, "double", [sent(protocol, array)], [to_gpu(protocol, one, 72)]) == (
        "shared memory size specified with the request for output 'OUT' (72 bytes) should be at least 80 bytes to "
        "hold the results"
    )


@BOTH
def test_registry(server, gpus, region, protocol):
    """Regions are listed, and a name is taken once. What cannot be opened is refused in Triton's words."""
    one = region(protocol, 64, 1)
    with closing(client_of(server, protocol)) as client:
        status = client.get_cuda_shared_memory_status(one.name)
        found = status[0] if protocol is HTTP else status.regions[one.name]
        found = found if protocol is HTTP else {"device_id": found.device_id, "byte_size": found.byte_size}
        assert (found["device_id"], found["byte_size"]) == (1, 64)
        register = client.register_cuda_shared_memory
        assert refusal(register, one.name, one.handle, 1, 64) == f"shared memory region '{one.name}' already in manager"
        assert refusal(register, "r", one.handle, 1, 65) == INVALID
        assert refusal(register, "r", one.handle, 1, 0) == INVALID
        assert refusal(register, "r", one.handle, 0, 64) == INVALID
        assert refusal(register, "r", one.handle, 2, 64) == INVALID
        assert refusal(register, "r", base64.b64encode(bytes(64)), 0, 64) == INVALID
        assert refusal(client.get_system_shared_memory_status, one.name) == (
            f"The region named '{one.name}' is registered as CUDA shared memory, not system shared memory"
        )
        client.unregister_system_shared_memory()
        assert client.get_cuda_shared_memory_status(one.name)
        one.unregister()
        assert refusal(client.get_cuda_shared_memory_status, one.name) == (
            f"Unable to find cuda shared memory region: '{one.name}'"
        )
    gpus[1].free(one.pointer)  # which nobody has open


def test_unregister_while_it_is_used(server, repository, region, wait_until):
    """A region that requests use is removed when they end, and not before."""
    array = np.arange(10)
    one = region(HTTP, array.nbytes)
    one.put(array)
    runs = Path(repository) / "wait" / "runs"
    with closing(server.client()) as client, ThreadPoolExecutor(1) as threads:
        inputs, outputs = [on_gpu(HTTP, array, one)], [to_gpu(HTTP, one, array.nbytes)]
        pending = threads.submit(infer, server, HTTP, "wait", inputs, outputs)
        wait_until(runs.exists)
        one.unregister()
        assert [each["name"] for each in client.get_cuda_shared_memory_status()] == [one.name]
        runs.unlink()
        pending.result()
        assert client.get_cuda_shared_memory_status() == []
    assert_array_equal(one.get(array), array)


@BOTH
def test_broker_is_lost(server, region, protocol, wait_until):
    """When the broker is killed, the next request has another one, and regions stay registered."""
    array = np.arange(10)
    one = region(protocol, array.nbytes)
    one.put(array)
    for broker in brokers(server):
        os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not brokers(server))
    result = infer(server, protocol, "double", [on_gpu(protocol, array, one)])
    assert_array_equal(result.as_numpy("OUT"), array * 2)


@BOTH
def test_faults(server, machine, region, protocol):
    """A request fails with the driver's explanation, and the next one succeeds. A GPU that is lost has a new broker."""
    array = np.arange(10)
    one = region(protocol, array.nbytes)
    for reason in ("CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_UNKNOWN", "CUDA_ERROR_ECC_UNCORRECTABLE"):
        with machine.failing(read=reason):
            message = refusal(infer, server, protocol, "double", [on_gpu(protocol, array, one)])
        assert message == f"CUDA shared memory region '{one.name}' cannot be read: {reason}"
        one.put(array)
        result = infer(server, protocol, "double", [on_gpu(protocol, array, one)])
        assert_array_equal(result.as_numpy("OUT"), array * 2)


@pytest.mark.parametrize("count", [4, 300_000], ids=["small", "large"])
def test_outputs_of_a_framework_on_a_gpu(server, region, count):
    """A tensor that a model has on a GPU is copied for the client, to a client's GPU, and for another model."""
    array = np.arange(count)
    assert_array_equal(server.infer("on_gpu", {"IN": array}).as_numpy("OUT"), array * 3)
    one = region(GRPC, array.nbytes)
    infer(server, GRPC, "on_gpu", [sent(GRPC, array)], [to_gpu(GRPC, one, array.nbytes)])
    assert_array_equal(one.get(array), array * 3)
    assert_array_equal(server.infer("on_gpu", {"IN": array}, request_id="call").as_numpy("OUT"), array * 6)


def test_no_broker_without_need(serving, machine, model, tmp_path, gpus):
    """A server starts no broker before a region is registered, and leaves none behind."""
    model("double", DOUBLE)
    with serving(tmp_path, "--allow-client-shm=true") as server:
        assert brokers(server) == []
        one = Region(server, HTTP, gpus[0], 80)
        (broker,) = brokers(server)
        one.put(np.arange(10))
        assert_array_equal(infer(server, HTTP, "double", [on_gpu(HTTP, np.arange(10), one)]).as_numpy("OUT")[9], 18)
        one.end()
    assert not broker.is_alive()
