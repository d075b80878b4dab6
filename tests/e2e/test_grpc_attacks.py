# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients of gRPC that mean no good. After each of them others are served as before, and no memory is left behind."""

import gzip
import socket
from contextlib import closing, suppress

import h2.events
import numpy as np
import pytest
import tritonclient.grpc as triton
from hyperframe.frame import ContinuationFrame, HeadersFrame, PingFrame, SettingsFrame
from tritonclient.grpc import service_pb2

from .harness.models import ECHO
from .harness.waiting import LIMIT_S

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
# The limit for the growth of a server in all attacks: heaps have holes, and slots stay warm.
GROWTH_MAX = 64 << 20
MIB = 1 << 20
# Raw contents that are announced, all of 2 GiB or half a GiB, and of which little or nothing is there.
RAWS = (b"\x3a\xf0\xff\xff\xff\x07", b"\x3a\x80\x80\x80\x80\x02" + bytes(1000))


def resident(server):
    """The memory of the server, shared memory included."""
    with open(f"/proc/{server.process.pid}/status") as file:
        rss = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))
    return rss + server.shared_bytes()


def request(size=1, **fields):
    made = service_pb2.ModelInferRequest(model_name="echo", **fields)
    made.inputs.add(name="IN", datatype="INT64", shape=[size])
    made.raw_input_contents.append(bytes(8 * size))
    return made.SerializeToString()


def framed(message, flag=0):
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


@pytest.fixture(scope="module")
def echo(tmp_path_factory, serving, write_model):
    """A server, for all that is done to it here."""
    repository = tmp_path_factory.mktemp("attacked")
    write_model(repository, "echo", ECHO)
    with serving(repository) as server:
        yield server


@pytest.fixture
def attacked(echo, wait_until):
    """The server; afterwards it is as healthy as it was before."""
    array = np.arange(1000)
    tensor = triton.InferInput("IN", [1000], "INT64").set_data_from_numpy(array)

    def infer():
        with closing(echo.grpc()) as client:
            assert np.array_equal(client.infer("echo", [tensor], client_timeout=LIMIT_S).as_numpy("OUT"), array)

    infer()
    before = resident(echo)
    yield echo
    infer()
    wait_until(lambda: resident(echo) < before + GROWTH_MAX)
    assert "Traceback" not in echo.log, echo.log


def talk(server, data):
    """Send bytes, and read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=LIMIT_S) as sock:
        answer = b""
        with suppress(ConnectionError):
            for start in range(0, len(data), MIB):
                sock.sendall(data[start : start + MIB])
            while received := sock.recv(1 << 16):
                answer += received
        return answer


def keep_talking(server, pieces):
    """Send pieces, and read nothing, until the server hangs up or there are no more; whether it has hung up."""
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=LIMIT_S) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            while sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True


class TestConnection:
    @pytest.mark.parametrize(
        "data",
        [
            b"\0" * 100,
            b"\xff" * 100_000,
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
            b"PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # TLS, to a server without it
            PREFACE + HeadersFrame(1, b"\xff" * 50, flags=["END_HEADERS"]).serialize(),  # bad HPACK
            PREFACE + HeadersFrame(2, b"\x82", flags=["END_HEADERS"]).serialize(),  # a stream of ours
            PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",  # DATA of 16 MiB
        ],
        ids=["zeros", "ones", "http1", "http1-post", "preface", "tls", "hpack", "even", "frame"],
    )
    def test_that_is_none(self, attacked, data):
        """The server hangs up."""
        talk(attacked, data)

    def test_floods(self, attacked):
        """A client that makes the server owe answers without end, and takes none, is cut off."""
        ping = PingFrame(0, opaque_data=b"12345678").serialize()
        settings = SettingsFrame(0, settings={3: 100}).serialize()
        assert keep_talking(attacked, [PREFACE] + [ping * 1000] * 1000)
        assert keep_talking(attacked, [PREFACE] + [settings * 1000] * 1000)

    def test_continuation_flood(self, attacked):
        piece = ContinuationFrame(1, b"\x00\x01a\x7f\x80\x01" + b"b" * 255).serialize()
        assert keep_talking(attacked, [PREFACE, HeadersFrame(1, b"\x82").serialize()] + [piece * 100] * 1000)

    def test_rapid_reset(self, attacked, bare_client):
        """Calls that begin and are taken back at once: so many are no attack, more are."""
        with bare_client(attacked.grpc_port) as client, suppress(ConnectionError, AssertionError):
            client.read_until(lambda: client.saw(h2.events.WindowUpdated))
            for _ in range(300):
                for _ in range(100):
                    stream = client.head(client.INFER)
                    client.h2.send_data(stream, framed(request()))
                    client.h2.reset_stream(stream, 8)
                client.flush()
            client.status(client.call(client.LIVE))
        with closing(attacked.grpc()) as client:
            assert client.is_server_live()

    def test_headers_that_are_too_large(self, attacked, bare_client):
        with bare_client(attacked.grpc_port) as client:
            for _ in range(50):
                stream = client.head(client.LIVE, ended=True, **{f"x{n}": "y" * 1000 for n in range(30)})
                client.flush()
                assert client.status(stream) == "reset 11"
            assert client.status(client.call(client.LIVE)) == "0"

    def test_more_streams_than_there_may_be(self, attacked, bare_client):
        """They are refused, and may be tried again."""
        with bare_client(attacked.grpc_port) as client:
            client.read_until(lambda: client.saw(h2.events.RemoteSettingsChanged))
            limit = client.h2.remote_settings.max_concurrent_streams
            streams = [client.head(client.STREAM) for _ in range(limit)]
            client.h2.remote_settings[3] = limit + 10
            client.h2.remote_settings.acknowledge()
            more = client.head(client.STREAM)
            client.flush()
            with suppress(AssertionError):  # it hangs up, for the client knew the limit
                assert client.status(more) == "reset 7"
            assert len(streams) == limit

    def test_many_that_say_nothing(self, attacked):
        socks = [socket.create_connection(("127.0.0.1", attacked.grpc_port)) for _ in range(300)]
        for index, sock in enumerate(socks):
            sock.sendall(PREFACE[: index % len(PREFACE)])
        with closing(attacked.grpc()) as client:
            assert client.is_server_live()
        for sock in socks:
            sock.close()


class TestMessages:
    def test_that_are_only_announced(self, attacked, bare_client, wait_until):
        """Announced lengths of 2 GiB do not reserve memory, for any part of the message that is sent."""
        start = request()[:-10]
        before = resident(attacked)
        with bare_client(attacked.grpc_port) as client:
            for path in (client.INFER, client.STREAM, client.LIVE):
                for flag in (0, 1):
                    for body in (b"", start, *(start + raws for raws in RAWS)):
                        for _ in range(20):
                            stream = client.head(path, **{"grpc-encoding": "gzip"})
                            client.send(stream, bytes([flag]) + b"\x7f\xff\xff\xff" + body)
            assert client.status(client.call(client.LIVE)) == "0"
            assert resident(attacked) < before + GROWTH_MAX

    def test_that_are_announced_beyond_what_there_may_be(self, attacked, bare_client):
        with bare_client(attacked.grpc_port) as client:
            for length in (b"\x80\0\0\0", b"\xff\xff\xff\xff"):
                for path in (client.INFER, client.STREAM, client.LIVE):
                    stream = client.head(path)
                    client.send(stream, b"\0" + length + bytes(1000))
                    assert client.status(stream) == "8"

    @pytest.mark.parametrize("path", ["ModelInfer", "ModelStreamInfer", "ServerLive"])
    def test_that_grow_when_they_are_decompressed(self, attacked, bare_client, path):
        """A gigabyte of zeros in a megabyte."""
        bomb = gzip.compress(bytes(1024 * MIB), 1)
        with bare_client(attacked.grpc_port) as client:
            for _ in range(3):
                stream = client.head(f"/inference.GRPCInferenceService/{path}", **{"grpc-encoding": "gzip"})
                client.send(stream, framed(bomb, 1), ended=True)
                assert client.status(stream) == "8"

    def test_that_are_mutated(self, attacked, bare_client):
        """Every mutation of a valid request is answered, with a response or with an error."""
        random = np.random.default_rng(1)
        small, large = request(4, id="1"), request(20_000)
        with bare_client(attacked.grpc_port) as client:
            for number in range(600):
                message = bytearray(large if number % 10 == 0 else small)
                for _ in range(random.integers(1, 4)):
                    at = int(random.integers(0, min(len(message), 200)))
                    match random.integers(0, 3):
                        case 0:
                            message[at] = random.integers(0, 256)
                        case 1:
                            del message[at : at + int(random.integers(1, 9))]
                        case 2:
                            message[at:at] = random.bytes(int(random.integers(1, 9)))
                assert client.status(client.call(client.INFER, bytes(message))) in ("0", "3", "5", "13")
                stream = client.call(client.STREAM, bytes(message))
                assert client.status(stream) in ("0", "13")

    def test_with_more_than_anybody_has(self, attacked, bare_client):
        """Of inputs, raw contents, dimensions, parameters."""
        many = service_pb2.ModelInferRequest(model_name="echo")
        for number in range(20_000):
            many.inputs.add(name=str(number), datatype="INT64", shape=[1])
        raws = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[b""] * 200_000)
        dims = service_pb2.ModelInferRequest(model_name="echo")
        dims.inputs.add(name="IN", datatype="INT64", shape=[1] * 200_000)
        huge = service_pb2.ModelInferRequest(model_name="echo")
        huge.inputs.add(name="IN", datatype="INT64", shape=[2**62] * 8)
        parameters = service_pb2.ModelInferRequest(model_name="echo")
        for number in range(20_000):
            parameters.parameters[str(number)].int64_param = number
        names = service_pb2.ModelInferRequest(model_name="n" * 10 * MIB)
        with bare_client(attacked.grpc_port) as client:
            for each in (many, raws, dims, huge, parameters, names):
                assert client.status(client.call(client.INFER, each.SerializeToString())) in ("3", "5", "13"), each


class TestClientsThatTakeNothing:
    def test_hold_nobody_up(self, attacked, bare_client):
        """On the same connection and on others; and nothing of theirs is left when they are gone."""
        with bare_client(attacked.grpc_port, window=0) as client:
            for size in (1, 100_000):
                for _ in range(20):
                    stream = client.call(client.INFER, request(size))
                    client.read_until(lambda stream=stream: client.calls[stream].end)
            live = client.call(client.LIVE)
            client.h2.increment_flow_control_window(100, live)
            client.flush()
            assert client.status(live) == "0"
            with closing(attacked.grpc()) as other:
                assert other.is_server_live()

    def test_that_do_not_read_the_socket(self, attacked, bare_client):
        """Though their windows are as open as can be."""
        with bare_client(attacked.grpc_port) as client:
            client.read_until(lambda: client.saw(h2.events.WindowUpdated))
            client.h2.increment_flow_control_window(1 << 30)
            for _ in range(20):
                stream = client.head(client.INFER)
                client.h2.increment_flow_control_window(1 << 29, stream)
                client.send(stream, framed(request(100_000)), ended=True)
            with closing(attacked.grpc()) as other:
                assert other.is_server_live()


def test_what_is_no_gRPC_at_all(attacked, bare_client):
    """Unknown paths, content types and encodings have an error of their own."""
    with bare_client(attacked.grpc_port) as client:
        for path in ("/", "/a/b/c", "/inference.GRPCInferenceService/", "/inference.GRPCInferenceService/Nothing"):
            assert client.status(client.call(path)) == "12"
        stream = client.head(client.LIVE, ended=True, **{"content-type": "application/json"})
        client.flush()
        assert client.read_until(lambda: client.calls[stream].end)[":status"] == "415"
        stream = client.head(client.LIVE, ended=True, **{"grpc-encoding": "snappy"})
        client.flush()
        assert client.status(stream) == "12"
        assert "gzip" in client.calls[stream].end["grpc-accept-encoding"]
