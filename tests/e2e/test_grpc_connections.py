# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""gRPC's connections: many of them, over TLS, by each of their options, to the end of the server; by real clients."""

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import grpc
import h2.events
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from pyruntime.runtime.frontends.grpc.connection import STREAM_WINDOW
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES

from .harness.models import ECHO
from .harness.waiting import LIMIT_S

# Answers with as many zeros as it is told to, when there is a file `gate` in its folder, and tells that it has begun.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/begun", "a") as file:
            file.write("x" * len(requests))
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(request.inputs()[0].as_numpy()[0], np.int64))])
            for request in requests
        ]
"""
MIB = 1 << 20


def request(*numbers, model="echo", **fields):
    """A serialised request; of one array, or of numbers."""
    array = numbers[0] if isinstance(numbers[0], np.ndarray) else np.array(numbers, np.int64)
    made = service_pb2.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name="IN", datatype="INT64", shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    return made.SerializeToString()


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


def messages(data, kind=service_pb2.ModelInferResponse):
    """The messages in the data of a call."""
    found = []
    while data:
        end = 5 + int.from_bytes(data[1:5], "big")
        found.append(kind.FromString(bytes(data[5:end])))
        data = data[end:]
    return found


def echoed(server, array):
    tensor = triton.InferInput("IN", list(array.shape), "INT64").set_data_from_numpy(array)
    with closing(server.grpc()) as client:
        return client.infer("echo", [tensor], client_timeout=LIMIT_S).as_numpy("OUT")


@pytest.fixture(scope="module")
def echo(tmp_path_factory, serving, write_model):
    """A server that nobody here changes."""
    repository = tmp_path_factory.mktemp("echo")
    write_model(repository, "echo", ECHO)
    with serving(repository) as server:
        yield server


class TestLoadGenerators:
    @pytest.fixture
    def run(self, tmp_path, echo):
        """Runs one of nghttp2's programs with a message; what it printed."""

        def run(program, path, message, *options):
            if shutil.which(program) is None:
                pytest.skip(f"{program} (nghttp2-client) is not installed")
            (tmp_path / "message").write_bytes(framed(message))
            url = f"http://127.0.0.1:{echo.grpc_port}/inference.GRPCInferenceService/{path}"
            headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            command = [program, *options, "-d", tmp_path / "message", *headers, url]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout

        return run

    @pytest.mark.parametrize(("path", "message"), [("ModelInfer", request(1, 2)), ("ServerLive", b"")])
    def test_h2load(self, run, path, message):
        said = run("h2load", path, message, "-n", "2000", "-c", "10", "-m", "20")
        assert "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout" in said
        assert "status codes: 2000 2xx" in said

    def test_h2load_of_large_messages(self, run):
        said = run("h2load", "ModelInfer", request(np.arange(MIB // 8)), "-n", "100", "-c", "4", "-m", "5")
        assert "100 succeeded, 0 failed, 0 errored" in said

    @pytest.mark.parametrize(("path", "message"), [("ModelInfer", request(1, 2)), ("ServerLive", b"")])
    def test_nghttp(self, run, path, message):
        assert "grpc-status: 0" in run("nghttp", path, message, "-v", "--no-push")


class TestMany:
    @pytest.mark.parametrize("connections", [1, 200])
    def test_calls_at_a_time(self, echo, connections):
        async def infer():
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [
                grpc.aio.insecure_channel(f"127.0.0.1:{echo.grpc_port}", options=options) for _ in range(connections)
            ]
            stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in channels]
            requests = [service_pb2.ModelInferRequest.FromString(request(number)) for number in range(1000)]
            answers = await asyncio.gather(
                *(stubs[n % connections].ModelInfer(each, timeout=LIMIT_S) for n, each in enumerate(requests))
            )
            for channel in channels:
                await channel.close()
            return [int(np.frombuffer(answer.raw_output_contents[0], np.int64)[0]) for answer in answers]

        assert asyncio.run(infer()) == [*range(1000)]


class TestSizes:
    @pytest.mark.parametrize("border", [4096, 16384, LARGE_BYTES, MIB, STREAM_WINDOW])
    def test_around_every_border(self, echo, border):
        """Of what is copied, of frames, of what is placed, of windows."""
        for size in range(border // 8 - 12, border // 8 + 2):
            array = np.arange(size)
            assert np.array_equal(echoed(echo, array), array)

    def test_in_small_pieces(self, echo, bare_client):
        """Every byte by itself, and the borders of pieces everywhere."""
        message = framed(request(np.arange(LARGE_BYTES // 8)))
        with bare_client(echo.grpc_port) as client:
            client.read_until(lambda: client.saw(h2.events.WindowUpdated))
            stream = client.head(client.INFER)
            for byte in range(200):
                client.send(stream, message[byte : byte + 1])
            for start in range(200, len(message), 997):
                client.send(stream, message[start : start + 997], ended=start + 997 >= len(message))
            assert client.status(stream) == "0"
            (response,) = messages(client.calls[stream].data)
            assert response.raw_output_contents[0] == np.arange(LARGE_BYTES // 8).tobytes()

    def test_many_raw_contents(self, model, serve, bare_client):
        """A large message of thousands of tensors."""
        count = 1000
        tensors = " ".join(f'input {{ name: "I{n}" data_type: TYPE_INT64 dims: [ -1 ] }}' for n in range(count))
        model(
            "sum",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    found = sum(int(tensor.as_numpy().sum()) for tensor in requests[0].inputs())
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([found]))])]
            """,
            config=f'backend: "python" {tensors} output {{ name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] }}',
        )
        made = service_pb2.ModelInferRequest(model_name="sum")
        for number in range(count):
            made.inputs.add(name=f"I{number}", datatype="INT64", shape=[10 + number % 7])
            made.raw_input_contents.append(np.full(10 + number % 7, number).tobytes())
        with bare_client(serve().grpc_port) as client:
            stream = client.call(client.INFER, made.SerializeToString())
            assert client.status(stream) == "0"
            (response,) = messages(client.calls[stream].data)
        expected = sum(number * (10 + number % 7) for number in range(count))
        assert np.frombuffer(response.raw_output_contents[0], np.int64) == [expected]

    def test_the_largest_there_can_be(self, model, serve, bare_client, require_memory):
        require_memory(14 << 30)
        model(
            "size",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    array = requests[0].inputs()[0].as_numpy()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([array.size, array[-1]]))])]
            """,
        )
        size = (1 << 31) // 8 - 8
        head = service_pb2.ModelInferRequest(model_name="size")
        head.inputs.add(name="IN", datatype="INT64", shape=[size])
        raw = bytearray(b"\x3a")
        left = size * 8
        while left > 0x7F:
            raw.append(left & 0x7F | 0x80)
            left >>= 7
        raw.append(left)
        start = head.SerializeToString() + bytes(raw)
        with bare_client(serve().grpc_port) as client:
            client.read_until(lambda: client.saw(h2.events.WindowUpdated))
            stream = client.head(client.INFER)
            client.send(stream, b"\0" + (len(start) + size * 8).to_bytes(4, "big") + start)
            zeros = bytes(8 * MIB)
            for _ in range(size * 8 // len(zeros)):
                client.send(stream, zeros)
            client.send(stream, zeros[: size * 8 % len(zeros) - 8])
            client.send(stream, np.int64(5).tobytes(), ended=True)
            assert client.status(stream) == "0"
            (response,) = messages(client.calls[stream].data)
            assert np.frombuffer(response.raw_output_contents[0], np.int64).tolist() == [size, 5]


class TestTls:
    @pytest.fixture(params=["", "-mutual"])
    def mutual(self, request):
        return request.param

    @pytest.fixture
    def server(self, model, serve, certificates, mutual):
        model("echo", ECHO)
        return serve(
            f"--grpc-use-ssl{mutual}=true",
            f"--grpc-server-cert={certificates / 'cert.pem'}",
            f"--grpc-server-key={certificates / 'key.pem'}",
            *([f"--grpc-root-cert={certificates / 'root.pem'}"] if mutual else []),
        )

    def test_large_messages_both_ways(self, server, certificates, mutual):
        options = {"ssl": True, "root_certificates": str(certificates / "root.pem")}
        if mutual:
            options |= {
                "private_key": str(certificates / "client-key.pem"),
                "certificate_chain": str(certificates / "client.pem"),
            }
        with closing(server.grpc(**options)) as client:
            for size in (1, 10_000, 20 * MIB // 8):
                array = np.random.default_rng(size).integers(0, 1 << 40, size)
                tensor = triton.InferInput("IN", [size], "INT64").set_data_from_numpy(array)
                for _ in range(3):
                    result = client.infer("echo", [tensor], client_timeout=LIMIT_S)
                    assert np.array_equal(result.as_numpy("OUT"), array)

    def test_slow_reader(self, server, certificates, bare_client):
        """Responses that wait for a slow reader do not change meanwhile."""
        context = ssl.create_default_context(cafile=certificates / "root.pem")
        context.load_cert_chain(certificates / "client.pem", certificates / "client-key.pem")
        context.set_alpn_protocols(["h2"])
        with bare_client(server.grpc_port, context=context) as client:
            assert client.sock.selected_alpn_protocol() == "h2"
            client.read_until(lambda: client.saw(h2.events.WindowUpdated))
            client.h2.increment_flow_control_window(1 << 30)
            streams = {}
            for number in range(8):
                stream = client.head(client.INFER)
                client.h2.increment_flow_control_window(1 << 29, stream)
                client.send(stream, framed(request(np.full(MIB // 8, number))), ended=True)
                streams[stream] = number
            for stream, number in streams.items():
                assert client.status(stream) == "0"
                (response,) = messages(client.calls[stream].data)
                assert response.raw_output_contents[0] == np.full(MIB // 8, number).tobytes()

    def test_who_is_refused(self, server, certificates, mutual, bare_client):
        """Clients without TLS are refused, and so are clients without a certificate where one is required."""
        with closing(server.grpc()) as client, pytest.raises(InferenceServerException):
            client.is_server_live(client_timeout=2)
        credentials = {"ssl": True, "root_certificates": str(certificates / "root.pem")}
        with closing(server.grpc(**credentials)) as client:
            if mutual:
                with pytest.raises(InferenceServerException):
                    client.is_server_live(client_timeout=2)
            else:
                assert client.is_server_live()


class TestOptions:
    @pytest.fixture
    def echoing(self, model, serve):
        model("echo", ECHO)
        return serve

    def test_keepalive(self, echoing, bare_client, wait_until):
        """A client that says nothing is pinged, and cut off if it does not answer."""
        server = echoing(
            "--grpc-keepalive-time=1000",
            "--grpc-keepalive-timeout=1000",
            "--grpc-keepalive-permit-without-calls=true",
            "--grpc-http2-max-pings-without-data=0",
        )
        with ExitStack() as clients:

            def heard():
                """A client that is pinged again after its answer; None if that came too late, on a busy machine."""
                client = clients.enter_context(bare_client(server.grpc_port))
                for _ in range(2):
                    client.events.clear()
                    while not client.saw(h2.events.PingReceived):
                        if not client.read():
                            return None
                return client

            client = wait_until(heard)
            while client.sock.recv(1 << 16):  # nothing is answered any more
                pass

    def test_pings(self, echoing, bare_client):
        server = echoing("--grpc-http2-min-recv-ping-interval-without-data=60000", "--grpc-http2-max-ping-strikes=5")
        with bare_client(server.grpc_port) as client:
            assert client.status(client.call(client.LIVE)) == "0"
            for _ in range(7):
                client.h2.ping(b"12345678")
            client.flush()
            end = client.read_until(lambda: client.saw(h2.events.ConnectionTerminated))
            assert (int(end.error_code), end.additional_data) == (11, b"too_many_pings")
            assert not client.read()

    def test_pings_without_limit(self, echoing, bare_client):
        server = echoing("--grpc-http2-max-ping-strikes=0")
        with bare_client(server.grpc_port) as client:
            for _ in range(50):
                client.h2.ping(b"12345678")
            client.flush()
            assert client.status(client.call(client.LIVE)) == "0"

    def test_age(self, echoing, bare_client):
        server = echoing("--grpc-max-connection-age=1000", "--grpc-max-connection-age-grace=1000")
        with bare_client(server.grpc_port) as client:
            stream = client.head(client.STREAM)
            client.send(stream, framed(request(1)))
            client.read_until(lambda: client.calls[stream].data)
            client.read_until(lambda: client.saw(h2.events.ConnectionTerminated))
            while client.read():  # it keeps its call for a while, and is cut off then
                pass
            assert client.calls[stream].status is None
        with closing(server.grpc()) as client:
            assert client.is_server_live()

    def test_port_that_is_shared(self, echoing, tmp_path):
        first = echoing("--reuse-grpc-port=true")
        second = echoing("--reuse-grpc-port=true", f"--grpc-port={first.grpc_port}")
        assert echoed(first, np.arange(3)).tolist() == [0, 1, 2]
        first.stop()
        second.grpc_port = first.grpc_port
        assert echoed(second, np.arange(3)).tolist() == [0, 1, 2]

    def test_port_that_is_not_shared(self, echoing):
        first = echoing()
        second = echoing(f"--grpc-port={first.grpc_port}", ready=False)
        assert second.wait_exit() == 1
        assert "gRPC cannot be served at" in second.log

    def test_no_grpc(self, echoing, bare_client):
        server = echoing("--allow-grpc=false")
        with pytest.raises(ConnectionRefusedError):
            bare_client(server.grpc_port)

    def test_restricted(self, echoing):
        server = echoing("--grpc-restricted-protocol=inference,health:secret=word")
        array = np.arange(3)
        tensor = triton.InferInput("IN", [3], "INT64").set_data_from_numpy(array)
        with closing(server.grpc()) as client:
            for refused in (client.is_server_live, lambda: client.infer("echo", [tensor])):
                with pytest.raises(InferenceServerException) as caught:
                    refused()
                assert caught.value.status() == "StatusCode.UNAVAILABLE"
                assert caught.value.message() == (
                    "This protocol is restricted, expecting header 'triton-grpc-protocol-secret'"
                )
            headers = {"triton-grpc-protocol-secret": "word"}
            assert client.is_server_live(headers=headers)
            assert client.infer("echo", [tensor], headers=headers).as_numpy("OUT").tolist() == [0, 1, 2]
            assert client.get_server_metadata().name

    def test_metadata_for_models(self, model, serve):
        model(
            "headers",
            """
            class TritonPythonModel:
                def execute(self, requests):
                    text = np.array([requests[0].parameters()], dtype=np.object_)
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]
            """,
            config="""
            backend: "python"
            input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
            output [ { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] } ]
            """,
        )
        server = serve("--grpc-header-forward-pattern=my-.*")
        tensor = triton.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([1]))
        with closing(server.grpc()) as client:
            for value in ("value", "value", "'quoted', with a backslash\\ ", " x", " "):
                result = client.infer("headers", [tensor], headers={"my-key": value, "other": "x"})
                assert json.loads(result.as_numpy("OUT")[0]) == {"my-key": value}

    def test_calls_without_a_host(self, echoing, bare_client):
        """A call needs neither `:authority` nor `host`, which the health check of haproxy does not send."""
        server = echoing()
        with bare_client(server.grpc_port) as client:
            client.h2.config.validate_outbound_headers = False
            for path in ("/grpc.health.v1.Health/Check", client.LIVE):
                assert client.status(client.call(path, **{":authority": None})) == "0"

    @pytest.mark.parametrize("level", ["low", "medium", "high"])
    def test_compression(self, echoing, bare_client, level):
        """Of responses, for those who take it."""
        server = echoing(f"--grpc-infer-response-compression-level={level}")
        with bare_client(server.grpc_port) as client:
            for path in (client.INFER, client.STREAM):
                zeros = request(np.zeros(10_000, np.int64))
                plain = client.call(path, zeros)
                assert client.status(plain) == "0"
                assert client.calls[plain].data[0] == 0
                for encoding in ("gzip", "deflate"):
                    compressed = client.call(path, zeros, **{"grpc-accept-encoding": f"identity, {encoding}"})
                    assert client.status(compressed) == "0"
                    assert client.calls[compressed].data[0] == 1
                    assert client.calls[compressed].end["grpc-encoding"] == encoding
                    assert len(client.calls[compressed].data) < 2000


class TestTheEnd:
    """Of the server, of a stub, of a model."""

    def test_of_the_server(self, model, serve, tmp_path, bare_client, wait_until):
        """Requests under way are answered, clients are notified, and clients without a request are disconnected."""
        model("gated", GATED)
        server = serve()
        with bare_client(server.grpc_port) as client, bare_client(server.grpc_port) as other:
            unary = client.call(client.INFER, request(3, model="gated"))
            stream = client.head(client.STREAM)
            client.send(stream, framed(request(4, model="gated", id="s")))
            idle = client.head(client.STREAM)
            half = client.head(client.INFER)
            client.send(half, b"\0\0\0")
            away = other.head(other.STREAM)
            other.flush()
            wait_until(lambda: (tmp_path / "gated" / "begun").exists())
            assert client.status(client.call(client.LIVE)) == other.status(other.call(other.LIVE)) == "0"
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "in-flight requests to complete" in server.log)
            late = client.call(client.INFER, request(3, model="gated"))
            assert client.status(late) == "14"
            (tmp_path / "gated" / "gate").touch()
            assert client.status(unary) == "0"
            assert messages(client.calls[unary].data)[0].outputs[0].shape == [3]
            assert [client.status(each) for each in (stream, idle, half)] == ["14"] * 3
            (event,) = messages(client.calls[stream].data, service_pb2.ModelStreamInferResponse)
            assert event.infer_response.id == "s"
            assert client.saw(h2.events.ConnectionTerminated).error_code == 0
            assert other.status(away) == "14"
        assert server.wait_exit() == 0

    def test_of_the_server_while_a_response_is_on_its_way(self, model, serve, tmp_path, bare_client, wait_until):
        """A client that takes it in the time that there is gets all of it."""
        model("gated", GATED)
        (tmp_path / "gated" / "gate").touch()
        server = serve()
        with bare_client(server.grpc_port, window=0) as client:
            stream = client.call(client.INFER, request(MIB, model="gated"))
            client.read_until(lambda: client.calls[stream].end)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "Waiting for 1 in-flight requests" in server.log)
            client.h2.increment_flow_control_window(1 << 29, stream)
            client.h2.increment_flow_control_window(1 << 29)
            client.flush()
            assert client.status(stream) == "0"
            assert messages(client.calls[stream].data)[0].outputs[0].shape == [MIB]
        assert server.wait_exit() == 0

    def test_of_a_stub(self, model, serve, tmp_path, wait_until):
        """Those whose request it had are told, and all goes on."""
        folder = model("gated", GATED)
        server = serve()
        tensor = triton.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([2]))
        with ThreadPoolExecutor() as threads, closing(server.grpc()) as client:
            errors = []
            client.start_stream(lambda result, error: errors.append(error))
            unary = threads.submit(client.infer, "gated", [tensor])
            wait_until((folder / "begun").exists)
            client.async_stream_infer("gated", [tensor], request_id="s")
            os.kill(server.stub("gated_0").pid, signal.SIGKILL)
            with pytest.raises(InferenceServerException) as caught:
                unary.result()
            assert caught.value.status() in ("StatusCode.INTERNAL", "StatusCode.UNAVAILABLE")
            (folder / "gate").touch()
            wait_until(lambda: len(errors) == 1)
            client.stop_stream()
            assert client.infer("gated", [tensor], client_timeout=LIMIT_S).as_numpy("OUT").tolist() == [0, 0]

    def test_of_a_model_during_an_upload(self, model, serve, bare_client, wait_until):
        """A large message belongs to the version in whose memory it comes, though the model is another one by then."""
        folder = model("echo", ECHO)
        server = serve("--model-control-mode=explicit", "--load-model=*")
        message = framed(request(np.arange(MIB)))
        with bare_client(server.grpc_port) as client, closing(server.grpc()) as other:
            stream = client.head(client.INFER)
            client.send(stream, message[: len(message) // 2])
            assert client.status(client.call(client.LIVE)) == "0"
            for _ in range(2):
                config = folder / "config.pbtxt"
                config.write_text(config.read_text() + "\n")
                other.load_model("echo")
                assert np.array_equal(echoed(server, np.arange(20_000)), np.arange(20_000))
            client.send(stream, message[len(message) // 2 :], ended=True)
            assert client.status(stream) == "0"
            (response,) = messages(client.calls[stream].data)
            assert response.raw_output_contents[0] == np.arange(MIB).tobytes()
