# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ModelInfer and ModelStreamInfer, by Triton's own client."""

import asyncio
import gzip
import queue
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

from .harness.models import COUNT
from .harness.waiting import LIMIT_S

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())], parameters={"n": 1})
            for request in requests
        ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
# Says in a file that it runs, and waits until it is cancelled.
UNTIL_CANCELLED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/begun", "w"):
            pass
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        with open(self.folder + "/cancelled", "w"):
            pass
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED))]
"""


def to_input(name, array):
    tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return tensor.set_data_from_numpy(array)


def numbers(*values):
    return [to_input("IN", np.array(values, np.int64))]


@contextmanager
def streaming(server, **options):
    """A stream, and a function that waits for its next (result, error)."""
    responses = queue.Queue()
    with closing(server.grpc()) as client:
        client.start_stream(lambda result, error: responses.put((result, error)), **options)
        yield client, lambda: responses.get(timeout=LIMIT_S)
        client.stop_stream()


class TestUnary:
    def test_infer(self, samples):
        with closing(samples.grpc()) as client:
            arrays = {"INPUT0": np.arange(16, dtype=np.float32), "INPUT1": np.ones(16, np.float32)}
            for request_id in ("", "first", "second"):
                result = client.infer(
                    "add_sub", [to_input(*item) for item in arrays.items()], request_id=request_id, model_version="1"
                )
                response = result.get_response()
                assert response.id == request_id
                assert (response.model_name, response.model_version) == ("add_sub", "1")
                assert result.as_numpy("OUTPUT0").tolist() == (arrays["INPUT0"] + 1).tolist()
                assert result.as_numpy("OUTPUT1").tolist() == (arrays["INPUT0"] - 1).tolist()

    def test_outputs_that_are_asked_for(self, samples):
        with closing(samples.grpc()) as client:
            inputs = [to_input(name, np.ones(16, np.float32)) for name in ("INPUT0", "INPUT1")]
            result = client.infer("add_sub", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
            assert [output.name for output in result.get_response().outputs] == ["OUTPUT1"]

    def test_strings(self, samples):
        with closing(samples.grpc()) as client:
            text = np.array([b"stone", "straße".encode()], dtype=np.object_)
            result = client.infer("strings", [to_input("TEXT", text)])
            assert result.as_numpy("UPPER").tolist() == [b"STONE", b"STRASSE"]

    @pytest.mark.parametrize("size", [0, 1, 7, 8191, 8192, 20_000, 3_000_000])
    def test_sizes(self, model, deploy, size):
        """Of nothing, in one frame, in many, beside or in the model's memory."""
        model("echo", ECHO)
        with closing(deploy().grpc()) as client:
            array = np.random.default_rng(size).integers(0, 1 << 40, size)
            for _ in range(2):
                result = client.infer("echo", [to_input("IN", array)], request_id="a")
                assert np.array_equal(result.as_numpy("OUT"), array)
                assert result.get_response().parameters["n"].int64_param == 1

    def test_errors(self, samples):
        def refusal(*arguments, **options):
            with closing(samples.grpc()) as client, pytest.raises(InferenceServerException) as caught:
                client.infer(*arguments, **options)
            return caught.value.status(), caught.value.message()

        ones = [to_input(name, np.ones(16, np.float32)) for name in ("INPUT0", "INPUT1")]
        status, message = refusal("nobody", ones)
        assert (status, message) == ("StatusCode.NOT_FOUND", "Request for unknown model: 'nobody' is not found")
        assert refusal("add_sub", ones, model_version="x")[0] == "StatusCode.INVALID_ARGUMENT"
        assert "expected 2 inputs but got 1" in refusal("add_sub", ones[:1])[1]
        assert refusal("decoupled", [to_input("TEXT", np.array([b"a"], dtype=np.object_))]) == (
            "StatusCode.UNIMPLEMENTED",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        )
        reserved = refusal("add_sub", ones, parameters={"triton_x": 1})
        assert "reserved" in reserved[1]

    def test_contents_that_are_typed(self, samples):
        """Without raw contents, as hand-written clients do it."""
        request = service_pb2.ModelInferRequest(model_name="add_sub")
        for name in ("INPUT0", "INPUT1"):
            entry = request.inputs.add(name=name, datatype="FP32", shape=[16])
            entry.contents.fp32_contents.extend(range(16))
        with grpc.insecure_channel(f"127.0.0.1:{samples.grpc_port}") as channel:
            response = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [2.0 * n for n in range(16)]

    def test_aio(self, samples):
        async def infer():
            async with triton_aio.InferenceServerClient(f"127.0.0.1:{samples.grpc_port}") as client:
                inputs = [to_input(name, np.ones(16, np.float32)) for name in ("INPUT0", "INPUT1")]
                results = await asyncio.gather(*(client.infer("add_sub", inputs) for _ in range(50)))
                return [result.as_numpy("OUTPUT0")[0] for result in results]

        assert asyncio.run(infer()) == [2.0] * 50

    def test_compressed(self, samples):
        """Both ways, by both algorithms."""
        with closing(samples.grpc()) as client:
            inputs = [to_input(name, np.ones(16, np.float32)) for name in ("INPUT0", "INPUT1")]
            for algorithm in ("gzip", "deflate"):
                result = client.infer("add_sub", inputs, compression_algorithm=algorithm)
                assert result.as_numpy("OUTPUT0").tolist() == [2.0] * 16

    def test_responses_can_be_compressed(self, model, serve):
        model("echo", ECHO)
        server = serve("--grpc-infer-response-compression-level=high")
        with closing(server.grpc()) as client:
            array = np.zeros(100_000, np.int64)
            assert np.array_equal(client.infer("echo", [to_input("IN", array)]).as_numpy("OUT"), array)

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_classes(self, model, serve, size):
        """The largest elements with their indexes, of few elements and of many."""
        model("echo", ECHO)
        with closing(serve("--grpc-infer-response-compression-level=low").grpc()) as client:
            array = np.arange(size, dtype=np.int64)[::-1].copy()
            outputs = [triton.InferRequestedOutput("OUT", class_count=2)]
            result = client.infer("echo", [to_input("IN", array)], outputs=outputs)
            assert result.as_numpy("OUT").tolist() == [b"%d:0" % (size - 1), b"%d:1" % (size - 2)]

    def test_deadline(self, model, serve, tmp_path, wait_until):
        """A client that gives up is answered so, and the model learns it."""
        model("slow", UNTIL_CANCELLED)
        with closing(serve().grpc()) as client:

            def has_begun():
                with pytest.raises(InferenceServerException) as caught:
                    client.infer("slow", numbers(1), client_timeout=0.5)
                assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
                return (tmp_path / "slow" / "begun").exists()

            wait_until(has_begun)  # where that takes longer than the client waits, the model has nothing to learn
            wait_until((tmp_path / "slow" / "cancelled").exists)

    def test_cancel(self, model, serve, tmp_path, wait_until):
        model("slow", UNTIL_CANCELLED)
        with closing(serve().grpc()) as client:
            outcomes = queue.Queue()
            call = client.async_infer("slow", numbers(1), lambda result, error: outcomes.put(error))
            wait_until((tmp_path / "slow" / "begun").exists)
            call.cancel()
            wait_until((tmp_path / "slow" / "cancelled").exists)
            assert outcomes.get(timeout=LIMIT_S).status() == "StatusCode.CANCELLED"


class TestStream:
    def test_one_response_each_in_order(self, model, deploy):
        model("echo", ECHO)
        with streaming(deploy()) as (client, following):
            for number in range(100):
                client.async_stream_infer("echo", numbers(number), request_id=str(number))
            for number in range(100):
                result, error = following()
                assert error is None
                assert result.get_response().id == str(number)
                assert result.as_numpy("OUT").tolist() == [number]
                assert result.get_response().parameters["triton_final_response"].bool_param

    def test_many_responses(self, model, deploy):
        """The end is a response of its own only if the client requests that."""
        model("count", COUNT, more=DECOUPLED)
        with streaming(deploy()) as (client, following):
            client.async_stream_infer("count", numbers(200), enable_empty_final_response=True)
            for number in range(200):
                result, error = following()
                assert error is None
                assert result.as_numpy("OUT").tolist() == [number]
                assert not result.get_response().parameters["triton_final_response"].bool_param
            result, _ = following()
            assert result.get_response().parameters["triton_final_response"].bool_param
            assert not result.get_response().outputs
            client.async_stream_infer("count", numbers(0))
            client.async_stream_infer("count", numbers(1), request_id="next")
            assert following()[0].get_response().id == "next"

    def test_errors_are_part_of_the_stream(self, model, deploy):
        """Which goes on."""
        model("echo", ECHO)
        with streaming(deploy()) as (client, following):
            client.async_stream_infer("nobody", numbers(1), request_id="1")
            client.async_stream_infer("echo", numbers(1, 2), request_id="2")
            _, error = following()
            assert "Request for unknown model: 'nobody' is not found" in error.message()
            assert following()[0].as_numpy("OUT").tolist() == [1, 2]

    def test_errors_end_the_stream_if_wanted(self, model, deploy):
        model("echo", ECHO)
        with streaming(deploy(), headers={"triton_grpc_error": "true"}) as (client, following):
            client.async_stream_infer("nobody", numbers(1))
            _, error = following()
            assert error.status() == "StatusCode.NOT_FOUND"

    def test_a_client_that_hangs_up(self, model, serve, tmp_path, wait_until):
        """All that is in flight is cancelled."""
        model("slow", UNTIL_CANCELLED)
        server = serve()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: None)
            client.async_stream_infer("slow", numbers(1))
            wait_until((tmp_path / "slow" / "begun").exists)
            client.stop_stream(cancel_requests=True)
            wait_until((tmp_path / "slow" / "cancelled").exists)

    @pytest.mark.parametrize("compression", ["none", "low"])
    @pytest.mark.parametrize("size", [1, 2000])
    def test_a_client_that_does_not_read_stops_the_model(
        self, model, serve, tmp_path, wait_until, bare_client, size, compression
    ):
        """The model is so many responses ahead, and no more; and goes on when the client does."""
        model(
            "endless",
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.sent = open(args["model_repository"] + "/sent", "w")

                def execute(self, requests):
                    sender = requests[0].get_response_sender()
                    size = int(requests[0].inputs()[0].as_numpy()[0])
                    for number in range(1200):
                        print(number, file=self.sent, flush=True)
                        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, number))]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            """,
            more=DECOUPLED,
        )
        server = serve(f"--grpc-infer-response-compression-level={compression}")
        sent = tmp_path / "endless" / "sent"
        request = service_pb2.ModelInferRequest(model_name="endless")
        request.inputs.add(name="IN", datatype="INT64", shape=[1])
        request.raw_input_contents.append(np.int64(size).tobytes())
        with bare_client(server.grpc_port, window=0) as client:
            metadata = {"grpc-accept-encoding": "gzip"}
            call = client.call(client.STREAM, request.SerializeToString(), **metadata)
            client.read_until(lambda: client.calls[call].end)
            ahead = min(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX // (8 * size))
            # The sender is within the call that waits, since the client takes no response.
            wait_until(lambda: sent.exists() and len(sent.read_text().split()) == ahead + 1)
            client.opens_windows = True
            client.h2.increment_flow_control_window(1 << 24, call)
            client.h2.increment_flow_control_window(1 << 24)
            client.flush()
            assert client.status(call) == "0"
            data = client.calls[call].data
        seen = []
        while data:
            length = int.from_bytes(data[1:5], "big")
            message = gzip.decompress(data[5 : 5 + length]) if data[0] else data[5 : 5 + length]
            response = service_pb2.ModelStreamInferResponse.FromString(message).infer_response
            seen += [np.frombuffer(raw, np.int64)[0] for raw in response.raw_output_contents]
            data = data[5 + length :]
        assert seen == [*range(1200)]
