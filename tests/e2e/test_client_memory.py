# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors in the shared memory of clients, by Triton's own clients of both protocols."""

import base64
import json
import os
import queue
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from numpy.testing import assert_array_equal
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from .harness.waiting import LIMIT_S

KIB = 1024
MIB = 1 << 20
PREFIX = "pyruntime_e2e_"
HTTP, GRPC = tritonclient.http, tritonclient.grpc
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC], ids=["http", "grpc"])
DATATYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]


def config(datatype, count=1, more=""):
    name = "STRING" if datatype == "BYTES" else datatype

    def tensors(kind, prefix):
        entries = [f'{{ name: "{prefix}{number}" data_type: TYPE_{name} dims: [ -1 ] }}' for number in range(count)]
        return f"{kind} [ {', '.join(entries)} ]\n"

    return 'backend: "python"\n' + tensors("input", "IN") + tensors("output", "OUT") + more


HEAD = "class TritonPythonModel:\n    def execute(self, requests):\n"
# Hands its inputs back.
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT" + tensor.name()[2:], tensor.as_numpy()) for tensor in request.inputs()]
            )
            for request in requests
        ]
"""
# Doubles its input where that is.
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            array *= 2
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", array)]))
        return responses
"""
# Says in a file that it runs and waits until that is gone; then answers with what its input holds by then.
WAIT = """
class TritonPythonModel:
    def initialize(self, args):
        self.path = args["model_repository"] + "/runs"

    def execute(self, requests):
        first = requests[0].inputs()[0].as_numpy() if MAPPED else None
        with open(self.path, "w"):
            pass
        while os.path.exists(self.path):
            time.sleep(0.001)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
# Keeps every input for ever, and answers with the sum of the first one that it was ever given.
KEEP = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            self.kept.append(request.inputs()[0].as_numpy())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", self.kept[0].sum(keepdims=True))]))
        return responses
"""
# Keeps what senders answer, from a thread of its own, until the next request.
KEEP_SENDERS = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        for request in requests:
            sum_before = self.kept[0].sum(keepdims=True) if self.kept else np.zeros(1, np.int64)
            threading.Thread(target=self.answer, args=(request, sum_before)).start()

    def answer(self, request, sum_before):
        self.kept.append(request.inputs()[0].as_numpy())
        sender = request.get_response_sender()
        for add in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", sum_before + add)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Has another model double its input, and passes on the result.
CALL = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="double", requested_output_names=["OUT0"], inputs=[request.inputs()[0]]
            )
            answer = call.exec()
            responses.append(pb_utils.InferenceResponse(answer.output_tensors(), error=answer.error()))
        return responses
"""
# How many requests its batch had.
BATCH = """
class TritonPythonModel:
    def execute(self, requests):
        count = pb_utils.Tensor("OUT1", np.full((1, 1), len(requests)))
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", request.inputs()[0].as_numpy()), count])
            for request in requests
        ]
"""
BATCH_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "IN0" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT0" data_type: TYPE_INT64 dims: [ -1 ] }, { name: "OUT1" data_type: TYPE_INT64 dims: [ 1 ] } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 600000000 }
"""


@pytest.fixture(scope="module")
def server(serving, write_model, tmp_path_factory):
    """A server that takes regions. Tests leave none."""
    repository = tmp_path_factory.mktemp("models")
    for datatype in [*DATATYPES, "BYTES"]:
        write_model(repository, f"echo_{datatype}", ECHO, config(datatype))
    write_model(repository, "echo2", ECHO, config("INT64", 2))
    write_model(repository, "double", DOUBLE, config("INT64"))
    for name, mapped in (("wait", "False"), ("wait_mapped", "True")):
        write_model(repository, name, WAIT.replace("MAPPED", mapped), config("INT64"))
    write_model(repository, "keep", KEEP, config("INT64"))
    write_model(repository, "call", CALL, config("INT64"))
    write_model(repository, "batch", BATCH, BATCH_CONFIG)
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "keep_senders", KEEP_SENDERS, config("INT64", more=decoupled))
    with serving(repository, "--allow-client-shm=true") as started:
        started.repository = repository
        yield started


class Region:
    """A client's shared memory, made by tritonclient, and registered over HTTP while the test runs."""

    def __init__(self, server, size, name="", register=True):
        self.server = server
        self.name = name or PREFIX + uuid4().hex
        self.key = "/" + self.name
        self.size = size
        self.handle = shm.create_shared_memory_region(self.name, self.key, size)
        if register:
            self.register()

    def register(self, size=None):
        with closing(self.server.client()) as client:
            client.register_system_shared_memory(self.name, self.key, size or self.size)

    def unregister(self):
        with closing(self.server.client()) as client:
            client.unregister_system_shared_memory(self.name)

    @property
    def path(self):
        return Path("/dev/shm" + self.key)

    def put(self, array, offset=0):
        shm.set_shared_memory_region(self.handle, [array], offset)

    def get(self, array, offset=0):
        """The contents, in the datatype and shape of `array`."""
        return shm.get_contents_as_numpy(self.handle, array.dtype, array.shape, offset)

    def truncate(self, size):
        os.truncate(self.path, size)

    def destroy(self):
        self.unregister()
        with suppress(shm.SharedMemoryException, FileNotFoundError):
            shm.destroy_shared_memory_region(self.handle)


@pytest.fixture
def region(server):
    """`region(size, name="", register=True)`"""
    made = []

    def make(size, **how):
        made.append(Region(server, size, **how))
        return made[-1]

    yield make
    for each in made:
        each.destroy()


@pytest.fixture
def disabled(serving, write_model, tmp_path):
    """A server that takes no regions."""
    write_model(tmp_path, "echo_INT64", ECHO, config("INT64"))
    with serving(tmp_path) as started:
        yield started


def in_region(protocol, name, array, region, offset=0, size=None, region_name=""):
    tensor = protocol.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_shared_memory(region_name or region.name, array.nbytes if size is None else size, offset)
    return tensor


def sent(protocol, name, array):
    tensor = protocol.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def to_region(protocol, name, region, size, offset=0, region_name=""):
    output = protocol.InferRequestedOutput(name)
    output.set_shared_memory(region_name or region.name, size, offset)
    return output


def infer(server, protocol, model, inputs, outputs=None, **options):
    with closing(server.client() if protocol is HTTP else server.grpc()) as client:
        return client.infer(model, inputs, outputs=outputs, **options)


def refusal(server, protocol, *arguments, **options):
    """(status of HTTP or of gRPC, message) of the error."""
    with pytest.raises(InferenceServerException) as caught:
        infer(server, protocol, *arguments, **options)
    return caught.value.status(), caught.value.message()


def some(datatype, size):
    """Contents of about so many bytes."""
    if datatype == "BYTES":
        return np.array([b"", b"a", "\u00e9".encode(), b"x" * (size // 4)] * 4, object)
    dtype = np.dtype({"BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d"}.get(datatype, datatype.lower()))
    return (np.arange(size // dtype.itemsize) % 100).astype(dtype)


class TestEveryWay:
    @BOTH
    @pytest.mark.parametrize("size", [64, 3 * MIB], ids=["small", "large"])
    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_both(self, server, region, protocol, datatype, size):
        """Inputs are read from a region, outputs are written to one: at any offset, and to no byte beside it."""
        array = some(datatype, size)
        one, two = region(array.nbytes + 24), region(array.nbytes + 24)
        one.put(array, 8)
        two.put(np.full(two.size, 9, np.uint8))
        infer(
            server,
            protocol,
            f"echo_{datatype}",
            [in_region(protocol, "IN0", array, one, 8)],
            [to_region(protocol, "OUT0", two, array.nbytes + 8, 8)],
        )
        assert_array_equal(two.get(array, 8), array)
        assert (two.get(np.empty(8, np.uint8)) == 9).all()
        assert (two.get(np.empty(16, np.uint8), 8 + array.nbytes) == 9).all()

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_bytes(self, server, region, protocol, size):
        """Strings lie there in their encoded form, in and out."""
        array = some("BYTES", size)
        encoded = np.frombuffer(serialize_byte_tensor(array).item(), np.uint8)
        one, two = region(len(encoded)), region(len(encoded) + 8)
        one.put(encoded)
        tensor = protocol.InferInput("IN0", list(array.shape), "BYTES")
        tensor.set_shared_memory(one.name, len(encoded))
        infer(server, protocol, "echo_BYTES", [tensor], [to_region(protocol, "OUT0", two, two.size)])
        assert_array_equal(two.get(encoded), encoded)
        assert_array_equal(shm.get_contents_as_numpy(two.handle, np.object_, array.shape), array)

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_input_only(self, server, region, protocol, size):
        """The output is sent as usual."""
        array = some("INT64", size)
        one = region(array.nbytes)
        one.put(array)
        result = infer(server, protocol, "echo_INT64", [in_region(protocol, "IN0", array, one)])
        assert_array_equal(result.as_numpy("OUT0"), array)

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_output_only(self, server, region, protocol, size):
        """The input is sent as usual."""
        array = some("INT64", size)
        one = region(array.nbytes)
        infer(
            server,
            protocol,
            "echo_INT64",
            [sent(protocol, "IN0", array)],
            [to_region(protocol, "OUT0", one, array.nbytes)],
        )
        assert_array_equal(one.get(array), array)

    @BOTH
    @pytest.mark.parametrize("binary", [False, True])
    def test_one_of_two(self, server, region, protocol, binary):
        """Of two inputs one lies in a region, of two outputs the other one goes there; the rest is sent."""
        a, b = some("INT64", 100 * KIB), some("INT64", 64)
        one, two = region(a.nbytes), region(b.nbytes)
        one.put(a)
        first = protocol.InferRequestedOutput("OUT0", **({"binary_data": binary} if protocol is HTTP else {}))
        result = infer(
            server,
            protocol,
            "echo2",
            [in_region(protocol, "IN0", a, one), sent(protocol, "IN1", b)],
            [first, to_region(protocol, "OUT1", two, b.nbytes)],
        )
        assert_array_equal(result.as_numpy("OUT0"), a)
        assert_array_equal(two.get(b), b)

    @BOTH
    def test_the_response_says_where(self, server, region, protocol):
        """Region, offset, and how many bytes there are; over HTTP nothing of that, as in Triton."""
        array = some("INT64", 64)
        one = region(4 * KIB)
        one.put(array)
        result = infer(
            server,
            protocol,
            "echo_INT64",
            [in_region(protocol, "IN0", array, one)],
            [to_region(protocol, "OUT0", one, KIB, 2 * KIB)],
            request_id="7",
        )
        output = result.get_output("OUT0")
        if protocol is HTTP:
            assert output == {"name": "OUT0", "datatype": "INT64", "shape": [8]}
            assert result.get_response()["id"] == "7"
        else:
            assert output.parameters["shared_memory_region"].string_param == one.name
            assert output.parameters["shared_memory_offset"].int64_param == 2 * KIB
            assert output.parameters["shared_memory_byte_size"].int64_param == 64

    @BOTH
    def test_writes_to_an_input(self, server, region, protocol):
        """Are the model's own: the client's memory stays as it was."""
        array = some("INT64", MIB)
        one, two = region(MIB), region(MIB)
        one.put(array)
        for _ in range(2):
            infer(
                server,
                protocol,
                "double",
                [in_region(protocol, "IN0", array, one)],
                [to_region(protocol, "OUT0", two, MIB)],
            )
            assert_array_equal(two.get(array), 2 * array)
        assert_array_equal(one.get(array), array)

    def test_in_each_others_place(self, server, region):
        """Outputs that go to where the inputs lie do not get mixed up."""
        a, b = some("INT64", MIB), some("INT64", MIB)[::-1].copy()
        one = region(2 * MIB)
        one.put(a)
        one.put(b, MIB)
        infer(
            server,
            HTTP,
            "echo2",
            [in_region(HTTP, "IN0", a, one), in_region(HTTP, "IN1", b, one, MIB)],
            [to_region(HTTP, "OUT0", one, MIB, MIB), to_region(HTTP, "OUT1", one, MIB)],
        )
        assert_array_equal(one.get(a), b)
        assert_array_equal(one.get(b, MIB), a)

    def test_an_offset_of_the_region(self, server, region):
        """A region may be a part of an object, and the offset in it comes on top."""
        one = region(4 * KIB, register=False)
        array = some("INT64", 64)
        one.put(array, KIB + 8)
        with closing(server.client()) as client:
            client.register_system_shared_memory(one.name, one.key, KIB, KIB)
        result = infer(server, HTTP, "echo_INT64", [in_region(HTTP, "IN0", array, one, 8)])
        assert_array_equal(result.as_numpy("OUT0"), array)


class TestModels:
    @BOTH
    def test_batches(self, server, region, protocol):
        """Requests with and without regions share a batch."""
        arrays = [np.full((1, 16 * KIB), number, np.int64) for number in range(4)]
        regions = [region(array.nbytes) for array in arrays[:2]]
        for each, array in zip(regions, arrays, strict=False):
            each.put(array)
        outs = [region(array.nbytes) for array in arrays[:2]]

        def one(number):
            count = protocol.InferRequestedOutput("OUT1")
            if number < 2:
                out = to_region(protocol, "OUT0", outs[number], outs[number].size)
                tensor = in_region(protocol, "IN0", arrays[number], regions[number])
            else:
                out, tensor = protocol.InferRequestedOutput("OUT0"), sent(protocol, "IN0", arrays[number])
            return infer(server, protocol, "batch", [tensor], [out, count])

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(one, range(4)))
        assert [result.as_numpy("OUT1").item() for result in results] == [4] * 4
        for number in range(2):
            assert_array_equal(outs[number].get(arrays[number]), arrays[number])
            assert_array_equal(results[number + 2].as_numpy("OUT0"), arrays[number + 2])

    def test_one_that_keeps_its_input(self, server, region):
        """The kept input does not change with the client's memory after the response, even if it shrinks."""
        array = some("INT64", MIB)
        one = region(MIB)
        one.put(array)
        for _ in range(3):
            result = infer(server, HTTP, "keep", [in_region(HTTP, "IN0", array, one)])
            assert result.as_numpy("OUT0").item() == array.sum()
            one.put(np.full_like(array, 5))
        one.truncate(0)
        result = infer(server, HTTP, "keep", [sent(HTTP, "IN0", array[:1])])
        assert result.as_numpy("OUT0").item() == array.sum()

    def test_one_that_sends_many(self, server, region):
        """Every response goes to the same place; inputs stay as they were though the last one is sent."""
        array = some("INT64", MIB)
        one, two = region(MIB), region(64)
        one.put(array)
        assert self.stream(server, array, one, two) == [0, 1, 2]
        one.put(np.full_like(array, 5))
        total = int(array.sum())
        assert self.stream(server, array, one, two) == [total, total + 1, total + 2]
        one.put(np.full_like(array, 6))
        assert self.stream(server, array, one, two) == [total, total + 1, total + 2]

    def stream(self, server, array, one, two):
        """The numbers that have arrived in `two`: the last one stays; the client has seen the others."""
        answers = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer(
                "keep_senders",
                [in_region(GRPC, "IN0", array, one)],
                outputs=[to_region(GRPC, "OUT0", two, 8)],
                enable_empty_final_response=True,
            )
            count, final = 0, False
            while not final:
                result, error = answers.get(timeout=LIMIT_S)
                assert error is None
                response = result.get_response()
                final = response.parameters["triton_final_response"].bool_param
                if response.outputs:
                    assert response.outputs[0].parameters["shared_memory_byte_size"].int64_param == 8
                    count += 1
            client.stop_stream()
        last = two.get(np.empty(1, np.int64)).item()
        return list(range(last - count + 1, last + 1))

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_one_that_calls_another(self, server, region, protocol, size):
        """A model can pass on an input in client memory, and return the outputs of the called model."""
        array = some("INT64", size)
        one, two = region(size), region(size)
        one.put(array)
        infer(
            server, protocol, "call", [in_region(protocol, "IN0", array, one)], [to_region(protocol, "OUT0", two, size)]
        )
        assert_array_equal(two.get(array), 2 * array)
        assert_array_equal(one.get(array), array)


class TestRefusals:
    @BOTH
    def test_unknown_region(self, server, region, protocol):
        """Of an input, or of an output."""
        array = some("INT64", 64)
        one = region(64)
        message = "Unable to find shared memory region: 'nobody'"
        status = "404" if protocol is HTTP else "StatusCode.NOT_FOUND"
        wrong_input = [in_region(protocol, "IN0", array, one, region_name="nobody")]
        assert refusal(server, protocol, "echo_INT64", wrong_input) == (status, message)
        wrong_output = [to_region(protocol, "OUT0", one, 64, region_name="nobody")]
        right = [in_region(protocol, "IN0", array, one)]
        assert refusal(server, protocol, "echo_INT64", right, wrong_output) == (status, message)

    @BOTH
    @pytest.mark.parametrize(
        ("offset", "size", "message"),
        [
            (64, 64, "Invalid offset for shared memory region: '{}'"),
            (2**62, 64, "Invalid offset for shared memory region: '{}'"),
            (8, 64, "Invalid offset + byte size for shared memory region: '{}'"),
            (0, 65, "Invalid offset + byte size for shared memory region: '{}'"),
            (8, 2**63 - 8, "Invalid offset + byte size for shared memory region: '{}'"),
        ],
    )
    def test_out_of_range(self, server, region, protocol, offset, size, message):
        """Any range that exceeds the region is refused, though the client's object is larger."""
        array = some("INT64", 64)
        one = region(KIB, register=False)
        one.register(64)
        status = "400" if protocol is HTTP else "StatusCode.INVALID_ARGUMENT"
        expected = (status, message.format(one.name))
        wrong = [in_region(protocol, "IN0", array, one, offset, size)]
        assert refusal(server, protocol, "echo_INT64", wrong) == expected
        right = [in_region(protocol, "IN0", array, one)]
        outputs = [to_region(protocol, "OUT0", one, size, offset)]
        assert refusal(server, protocol, "echo_INT64", right, outputs) == expected

    @BOTH
    def test_input_of_another_size(self, server, region, protocol):
        """An input must fill its shape."""
        one = region(64)
        wrong = [in_region(protocol, "IN0", some("INT64", 64), one, size=56)]
        _, message = refusal(server, protocol, "echo_INT64", wrong)
        assert "input byte size mismatch for input 'IN0' for model 'echo_INT64'. Expected 64, got 56" in message

    @BOTH
    def test_wrong_bytes(self, server, region, protocol):
        """Strings are looked at, wherever they lie."""
        one = region(64)
        one.put(np.full(64, 255, np.uint8))
        tensor = protocol.InferInput("IN0", [1], "BYTES")
        tensor.set_shared_memory(one.name, 64)
        assert "incomplete string data" in refusal(server, protocol, "echo_BYTES", [tensor])[1]

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_place_that_is_too_small(self, server, region, protocol, size):
        """In Triton's words, and nothing is written."""
        array = some("INT64", size)
        one, two = region(size), region(2 * size)
        one.put(array)
        two.put(np.full(2 * size, 9, np.uint8))
        status, message = refusal(
            server,
            protocol,
            "echo_INT64",
            [in_region(protocol, "IN0", array, one)],
            [to_region(protocol, "OUT0", two, size - 1)],
        )
        assert status == ("500" if protocol is HTTP else "StatusCode.INTERNAL")
        assert message == (
            f"shared memory size specified with the request for output 'OUT0' ({size - 1} bytes) should be at least "
            f"{size} bytes to hold the results"
        )
        assert (two.get(np.empty(2 * size, np.uint8)) == 9).all()

    @BOTH
    def test_registering(self, server, region, protocol):
        """Each registration that is refused has its reason."""
        one = region(64)
        with closing(server.client() if protocol is HTTP else server.grpc()) as client:

            def message(*arguments):
                with pytest.raises(InferenceServerException) as caught:
                    client.register_system_shared_memory(*arguments)
                return caught.value.message()

            assert message(one.name, one.key, 64) == f"shared memory region '{one.name}' already in manager"
            assert message("x", "/nobody", 64) == "Unable to open shared memory region: '/nobody'"
            assert message("x", one.key, 65) == "failed to register shared memory region 'x': invalid args"
            assert message("x", one.key, 64, 1) == "failed to register shared memory region 'x': invalid args"
            assert "reserved prefix" in message("x", "triton_python_backend_shm_region_1", 64)
            assert "Unable to open" in message("x", "/etc/passwd", 64)
            client.unregister_system_shared_memory("nobody")
            status = client.get_system_shared_memory_status()
            names = {row["name"] for row in status} if protocol is HTTP else set(status.regions)
            # A model of another test that keeps its inputs keeps a region, too.
            assert one.name in names
            assert "x" not in names

    @BOTH
    def test_cuda(self, server, protocol):
        """There are no GPUs; nothing is registered."""
        with closing(server.client() if protocol is HTTP else server.grpc()) as client:
            handle = base64.b64encode(bytes(64))
            with pytest.raises(InferenceServerException) as caught:
                client.register_cuda_shared_memory("g", handle, 0, 64)
            assert caught.value.message() == "failed to register CUDA shared memory region: 'g', GPUs not supported"
            client.unregister_cuda_shared_memory()
            status = client.get_cuda_shared_memory_status()
            assert status == [] if protocol is HTTP else not status.regions

    @BOTH
    def test_disabled(self, disabled, region, protocol):
        """Without --allow-client-shm nothing goes, and the status says so."""
        message = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        status = "501" if protocol is HTTP else "StatusCode.UNIMPLEMENTED"
        one = region(64)
        with closing(disabled.client() if protocol is HTTP else disabled.grpc()) as client:
            for function, *arguments in (
                (client.register_system_shared_memory, "r", one.key, 64),
                (client.unregister_system_shared_memory,),
                (client.unregister_cuda_shared_memory,),
            ):
                with pytest.raises(InferenceServerException) as caught:
                    function(*arguments)
                assert (caught.value.status(), caught.value.message()) == (status, message)
            rows = client.get_system_shared_memory_status()
            assert rows == [] if protocol is HTTP else not rows.regions
        array = some("INT64", 64)
        wrong = [in_region(protocol, "IN0", array, one)]
        assert refusal(disabled, protocol, "echo_INT64", wrong) == (status, message)


@contextmanager
def running(server, wait_until, inputs, outputs=None, model="wait"):
    """A request to the model that waits, while it runs; the yielded list gets its result at the end."""
    path = server.repository / model / "runs"
    results = []
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(infer, server, HTTP, model, inputs, outputs)
        try:
            wait_until(path.exists)
            yield results
        finally:
            path.unlink(missing_ok=True)
        results.append(future.exception(LIMIT_S) or future.result())


class TestChanges:
    def test_unregistered_while_in_use(self, server, region, wait_until):
        """Requests under way go on, and so do others until they have ended; later ones are refused."""
        array = some("INT64", MIB)
        one, two = region(MIB), region(MIB)
        one.put(array)
        inputs = [in_region(HTTP, "IN0", array, one)]
        with running(server, wait_until, inputs, [to_region(HTTP, "OUT0", two, MIB)]) as results:
            one.unregister()
            two.unregister()
            infer(server, HTTP, "echo_INT64", inputs)
        assert results[0].get_output("OUT0") is not None
        assert_array_equal(two.get(array), array)
        wait_until(lambda: holders(server, one) == holders(server, two) == [])
        assert "Unable to find" in refusal(server, HTTP, "echo_INT64", inputs)[1]

    def test_unlinked_and_made_anew(self, server, region):
        """A name goes on to stand for the object that was registered, until it is registered anew."""
        array = some("INT64", MIB)
        one = region(MIB)
        one.put(array)
        inputs = [in_region(HTTP, "IN0", array, one)]
        one.path.unlink()
        one.path.write_bytes((array + 1).tobytes())
        assert_array_equal(infer(server, HTTP, "echo_INT64", inputs).as_numpy("OUT0"), array)
        one.unregister()
        one.register()
        assert_array_equal(infer(server, HTTP, "echo_INT64", inputs).as_numpy("OUT0"), array + 1)

    @BOTH
    @pytest.mark.parametrize("size", [64, MIB], ids=["small", "large"])
    def test_truncated(self, server, region, protocol, size):
        """An object that has shrunk is refused, so that no process reads behind its end."""
        array = some("INT64", size)
        one, two = region(size), region(size)
        one.put(array)
        inputs, outputs = [in_region(protocol, "IN0", array, one)], [to_region(protocol, "OUT0", two, size)]
        infer(server, protocol, "echo_INT64", inputs, outputs)
        (stub,) = [each for each in server.stubs() if " echo_INT64_" in each.title]
        one.truncate(size - 8)
        assert "Invalid offset + byte size" in refusal(server, protocol, "echo_INT64", inputs, outputs)[1]
        one.truncate(size)
        two.truncate(0)
        assert "Invalid offset + byte size" in refusal(server, protocol, "echo_INT64", inputs, outputs)[1]
        assert two.path.stat().st_size == 0
        two.truncate(size)
        one.put(array)
        infer(server, protocol, "echo_INT64", inputs, outputs)
        assert_array_equal(two.get(array), array)
        assert stub.is_alive()

    @pytest.mark.parametrize("which", ["input", "output"])
    def test_truncated_while_in_use(self, server, region, wait_until, which):
        """That request fails, and no other one ever notices."""
        array = some("INT64", MIB)
        one, two = region(MIB), region(MIB)
        one.put(array)
        inputs, outputs = [in_region(HTTP, "IN0", array, one)], [to_region(HTTP, "OUT0", two, MIB)]
        with running(server, wait_until, inputs, outputs) as results:
            (one if which == "input" else two).truncate(0)
        assert isinstance(results[0], InferenceServerException)
        assert "smaller than it was when it was registered" in results[0].message()
        for each in (one, two):
            each.truncate(MIB)
        one.put(array)
        with running(server, wait_until, inputs, outputs) as results:
            pass
        assert_array_equal(two.get(array), array)

    def test_truncated_while_the_model_reads(self, server, region, wait_until):
        """That request fails, and its stub goes on with the next one."""
        array = some("INT64", MIB)
        one = region(MIB)
        one.put(array)
        inputs = [in_region(HTTP, "IN0", array, one)]
        stubs = server.stubs()
        with running(server, wait_until, inputs, model="wait_mapped") as results:
            one.truncate(0)
        assert (
            results[0]
            .message()
            .endswith(
                "an input cannot be read: a region of shared memory is smaller than it was when it was registered"
            )
        )
        assert server.stubs() == stubs
        one.truncate(MIB)
        one.put(array)
        assert_array_equal(infer(server, HTTP, "echo_INT64", inputs).as_numpy("OUT0"), array)
        with running(server, wait_until, inputs, model="wait_mapped") as results:
            pass
        assert_array_equal(results[0].as_numpy("OUT0"), array)

    def test_more_than_the_socket_holds(self, server, region):
        """Any number of regions can be used, one after the other and all at once."""
        array = some("INT64", 64)
        regions = [region(64) for _ in range(400)]
        for number, each in enumerate(regions):
            each.put(array + number)

        def one(number):
            inputs = [in_region(HTTP, "IN0", array, regions[number])]
            return infer(server, HTTP, "echo_INT64", inputs).as_numpy("OUT0")

        with ThreadPoolExecutor(8) as threads:
            for number, result in enumerate(threads.map(one, range(len(regions)))):
                assert_array_equal(result, array + number)

    def test_hostile_bodies(self, server):
        """Hostile keys and numbers are refused, and the server lives."""
        for key in ("/a\0b", "/" + "x" * 10_000, "/\ud800", "/../../etc/passwd"):
            body = json.dumps({"key": key, "offset": 0, "byte_size": 8})
            answer = server.request("POST", "/v2/systemsharedmemory/region/r/register", body)
            assert answer.status in (400, 500)
        with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S):
            assert server.is_ready()


def holders(server, region):
    """The processes of the server that have the client's memory mapped, or open."""
    found = []
    for process in [server.process.pid, *[each.pid for each in server.family()]]:
        folder = Path(f"/proc/{process}")
        with suppress(OSError):
            names = folder.joinpath("maps").read_text()
            for entry in (folder / "fd").iterdir():
                with suppress(FileNotFoundError):
                    names += os.readlink(entry) + "\n"
            if region.name in names:
                found.append(process)
    return found


class TestLeaks:
    @BOTH
    def test_nothing_stays(self, server, region, wait_until, protocol):
        """Unregistering a region leaves no mapping and no descriptor, in the host or in any stub."""
        array = some("INT64", MIB)
        one, two = region(MIB), region(MIB)
        one.put(array)
        for model in ("echo_INT64", "double", "call", "keep"):
            outputs = [to_region(protocol, "OUT0", two, MIB)]
            infer(server, protocol, model, [in_region(protocol, "IN0", array, one)], outputs)
        assert holders(server, one)
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert one.name not in maps
        assert two.name not in maps
        one.unregister()
        two.unregister()
        wait_until(lambda: not holders(server, two))

    def test_descriptors(self, server, region, wait_until):
        """However often a region is registered and unregistered."""
        array = some("INT64", MIB)
        one = region(MIB)
        one.put(array)

        def open_files():
            return [len(os.listdir(f"/proc/{each}/fd")) for each in (server.process.pid, stub)]

        infer(server, HTTP, "double", [in_region(HTTP, "IN0", array, one)])
        (stub,) = [each.pid for each in server.stubs() if " double_" in each.title]
        before = open_files()
        for _ in range(20):
            one.unregister()
            one.register()
            infer(server, HTTP, "double", [in_region(HTTP, "IN0", array, one)])
        wait_until(lambda: all(now <= then for now, then in zip(open_files(), before, strict=True)))
