# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Long messages over a real session: threads take some of their steps, in turns of the loop."""

import gzip
import struct
import zlib
from types import SimpleNamespace

import pytest
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from pyruntime.runtime.config.inputs import STRINGS_AT_ONCE_BYTES_MAX
from pyruntime.runtime.frontends.grpc import repository_methods
from pyruntime.runtime.frontends.grpc.method import REQUEST_BYTES_MAX
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.runtime.inference.threads import THREADS_MAX
from pyruntime.utils.errors import Code, InferenceError

OK = (0, "")
LARGE = [float(n) for n in range(LARGE_BYTES // 4 + 100)]
RESOURCE_EXHAUSTED = 8
SERVICE = "/inference.GRPCInferenceService/"


def values(response):
    (contents,) = response.raw_output_contents
    return list(struct.unpack(f"<{len(contents) // 4}f", contents))


def echoed(answer):
    """The values in the response of a ModelInfer."""
    ((flag, message),) = answer.messages
    assert flag == 0
    return values(service_pb2.ModelInferResponse.FromString(message))


def echoes(answer):
    """The responses of a stream: the first value of each, or the message of its error."""
    responses = [service_pb2.ModelStreamInferResponse.FromString(message) for _, message in answer.messages]
    return [each.error_message or values(each.infer_response)[0] for each in responses]


def packed(request):
    return gzip.compress(request.SerializeToString())


@pytest.fixture(autouse=True)
def _balanced(server, loop):
    """No call leaves requests, memory or pending bytes behind."""
    yield
    while loop.turn():
        pass
    assert server.state.in_flight == 0
    assert server.state.intake.expected_bytes == 0
    assert server.state.pending_bytes.used == 0
    assert server.state.turns.free == THREADS_MAX
    assert server.memory.live == 0


class TestUnary:
    def test_large_typed_contents(self, dial, ask):
        peer = dial()
        assert echoed(peer[peer.call(peer.INFER, ask(*LARGE, raw=False))]) == LARGE

    @pytest.mark.parametrize("raw", [True, False])
    def test_compressed(self, dial, ask, raw):
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        peer.send(stream, packed(ask(*LARGE, raw=raw)), flag=1, ended=True)
        assert echoed(peer[stream]) == LARGE

    def test_threads_take_the_long_steps(self, dial, ask, loop):
        """When the last byte arrives, the message counts as pending, and all else is left to later turns."""
        peer = dial()
        stream = peer.call(peer.INFER, ended=False)
        message = ask(*LARGE, raw=False).SerializeToString()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(data), 16384):
            peer.h2.send_data(stream, data[at : at + 16384], end_stream=at + 16384 >= len(data))
        peer.transport.feed(peer.h2.data_to_send())
        assert peer.state.pending_bytes.used == len(message)
        assert loop.soon
        peer.pump()
        assert echoed(peer[stream]) == LARGE

    @pytest.mark.parametrize("raw", [True, False])
    def test_tensor_of_64_kib_needs_no_thread(self, dial, ask, server, loop, raw):
        """Its model has the request when its last byte has arrived."""
        server.instance.waits = True
        peer = dial()
        stream = peer.call(peer.INFER, ended=False)
        message = ask(*[1.0] * (16 << 10), raw=raw).SerializeToString()
        peer.h2.send_data(stream, b"\0" + len(message).to_bytes(4, "big"))
        for at in range(0, len(message), 16384):
            peer.h2.send_data(stream, message[at : at + 16384], end_stream=at + 16384 >= len(message))
        peer.transport.feed(peer.h2.data_to_send())
        assert not loop.soon
        assert len(server.instance.jobs) == 1
        server.instance.answer()
        peer.pump()
        assert echoed(peer[stream]) == [1.0] * (16 << 10)

    def test_client_cancels_in_each_step(self, dial, ask, loop):
        """Whatever a thread is doing for it, nothing is left of the call, and its model never hears of it."""
        for turns in range(9):
            peer = dial()
            stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
            message = packed(ask(*LARGE, raw=False))
            peer.h2.send_data(stream, b"\1" + len(message).to_bytes(4, "big") + message)
            peer.transport.feed(peer.h2.data_to_send())
            for _ in range(turns):
                loop.turn()
            peer.cancel(stream)
            assert peer.state.in_flight == 0
            while loop.turn():
                pass
            assert peer.state.pending_bytes.used == 0
            peer.hang_up()

    @pytest.mark.parametrize(
        ("message", "status", "reason"),
        [
            (b"\x2a\0" * 40_000, 3, "the request has 40000 inputs, expected at most 4096"),
            (b"\x0a\1\xff" + b"\x48\0" * 40_000, 13, "the message is no ModelInferRequest: it cannot be parsed"),
            (b"\x1a\1\xff" + b"\x48\0" * 40_000, 13, "the message is no ModelInferRequest: it cannot be parsed"),
            (b"\x0a\1n" + b"\x48\0" * 40_000, 5, "Request for unknown model: 'n' is not found"),
            (b"\x0a\1m" + b"\x48\0" * 140_000, 3, "the request has 140001 fields besides its contents, expected at"),
        ],
    )
    @pytest.mark.parametrize("compressed", [True, False])
    def test_that_is_refused(self, dial, message, status, reason, compressed):
        peer = dial()
        if compressed:
            stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
            peer.send(stream, gzip.compress(message), flag=1, ended=True)
        else:
            stream = peer.call(peer.INFER, message)
        assert peer[stream].status[0] == status
        assert peer[stream].status[1].startswith(reason)

    def test_damaged(self, dial):
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        peer.send(stream, gzip.compress(bytes(1 << 20))[:-1], flag=1, ended=True)
        assert peer[stream].status == (
            RESOURCE_EXHAUSTED,
            "the request is compressed with gzip, and its end is missing",
        )


class TestStream:
    def test_order(self, dial, ask):
        """Small messages do not overtake long ones, compressed or not, and the last of them ends the stream."""
        peer = dial()
        stream = peer.call(peer.STREAM, ended=False, grpc_encoding="gzip")
        data = b""
        for number in range(8):
            request = ask(*([float(number)] * (1 if number % 3 else len(LARGE))), raw=False)
            message = zlib.compress(request.SerializeToString()) if number % 2 else request.SerializeToString()
            data += bytes([number % 2]) + len(message).to_bytes(4, "big") + message
        peer.send(stream, raw=data, ended=True)
        assert echoes(peer[stream]) == list(map(float, range(8)))
        assert peer[stream].status == OK

    def test_stream_is_held(self, dial, ask, loop):
        """While a message is unpacked, the client may send no more than its window."""
        peer = dial()
        stream = peer.call(peer.STREAM, ended=False, grpc_encoding="gzip")
        message = packed(ask(*LARGE))
        peer.h2.send_data(stream, b"\1" + len(message).to_bytes(4, "big") + message)
        peer.transport.feed(peer.h2.data_to_send())
        before = peer.h2.local_flow_control_window(stream)
        small = ask(1.0).SerializeToString()
        for _ in range(100):
            peer.h2.send_data(stream, b"\0" + len(small).to_bytes(4, "big") + small)
        peer.transport.feed(peer.h2.data_to_send())
        assert peer.h2.local_flow_control_window(stream) == before - 100 * (len(small) + 5)
        peer.pump()
        assert len(echoes(peer[stream])) == 101
        peer.send(stream, ended=True)
        assert peer[stream].status == OK

    def test_refused_request_keeps_its_place(self, dial, ask):
        peer = dial()
        bad = ask(*LARGE, raw=False, model="nobody")
        wrong = b"\x0a\1m" + b"\x2a\0" * 40_000
        peer_call = peer.call(peer.STREAM, ask(1.0), bad, wrong, ask(*LARGE, raw=False), ask(2.0))
        first, unknown, refused, large, last = echoes(peer[peer_call])
        assert (first, large, last) == (1.0, 0.0, 2.0)
        assert "nobody" in unknown
        assert "40000 inputs" in refused
        assert peer[peer_call].status == OK

    def test_large_message_behind_a_long_one(self, dial, ask):
        """It does not go to request memory as it arrives, and is answered in its turn."""
        peer = dial()
        stream = peer.call(peer.STREAM, ended=False, grpc_encoding="gzip")
        first, second = packed(ask(*LARGE)), ask(*LARGE[1:]).SerializeToString()
        peer.h2.send_data(stream, b"\1" + len(first).to_bytes(4, "big") + first)
        peer.transport.feed(peer.h2.data_to_send())
        peer.send(stream, second, ended=True)
        assert echoes(peer[stream]) == [0.0, 1.0]

    def test_server_drains(self, dial, ask, server):
        """A message that is being unpacked is answered before the stream ends."""
        peer = dial()
        stream = peer.call(peer.STREAM, ended=False, grpc_encoding="gzip")
        message = packed(ask(*LARGE))
        peer.h2.send_data(stream, b"\1" + len(message).to_bytes(4, "big") + message)
        peer.transport.feed(peer.h2.data_to_send())
        assert server.state.in_flight == 1
        peer.connection.close_idle()
        peer.pump()
        assert echoes(peer[stream]) == [0.0]
        assert peer[stream].status[0] == 14


STRINGS = (
    "name: 's' input { name: 'IN' data_type: TYPE_STRING dims: -1 } output { name: 'OUT' data_type: TYPE_INT8 dims: 1 }"
)
MANY_STRINGS = STRINGS_AT_ONCE_BYTES_MAX // 4 + 1


class TestStrings:
    """A thread counts many of them, and what the client sends meanwhile waits."""

    @pytest.fixture
    def peer(self, dial, server):
        server.instance.waits = True
        server._serve("s", STRINGS, server.instance)
        return dial()

    def ask(self, count=MANY_STRINGS, size=4 * MANY_STRINGS, id=""):
        request = service_pb2.ModelInferRequest(model_name="s", id=id)
        request.inputs.add(name="IN", datatype="BYTES", shape=[count])
        request.raw_input_contents.append(bytes(size))
        return request

    def feed(self, peer, stream, *messages, flags=None, ended=False):
        """Have messages arrive within one turn of the loop."""
        data = b""
        for flag, message in zip(flags or [0] * len(messages), messages, strict=True):
            data += bytes([flag]) + len(message).to_bytes(4, "big") + message
        for at in range(0, len(data), 16384):
            peer.h2.send_data(stream, data[at : at + 16384], end_stream=ended and at + 16384 >= len(data))
        peer.transport.feed(peer.h2.data_to_send())

    @pytest.mark.parametrize("compressed", [True, False])
    def test_order(self, peer, server, ask, loop, compressed):
        """Later messages do not overtake it, wherever its strings arrived."""
        stream = peer.call(peer.STREAM, ended=False, grpc_encoding="gzip")
        strings = self.ask().SerializeToString()
        messages = [gzip.compress(strings) if compressed else strings, ask(1.0).SerializeToString()]
        self.feed(peer, stream, *messages, flags=[int(compressed), 0], ended=True)
        assert server.instance.jobs == []
        while loop.turn():
            pass
        assert [job.tensors[0][1] for job in server.instance.jobs] == ["BYTES", "FP32"]
        server.instance.answer()
        server.instance.answer()
        peer.pump()
        assert len(peer[stream].messages) == 2
        assert peer[stream].status == OK

    def test_wrong_count(self, peer, server, ask):
        """The error takes the place of the answer."""
        server.instance.waits = False
        bad = self.ask(MANY_STRINGS + 1)
        first, refused, last = echoes(peer[peer.call(peer.STREAM, ask(1.0), bad, ask(2.0))])
        assert (first, last) == (1.0, 2.0)
        expected = f"expected {MANY_STRINGS + 1} string elements for inference input 'IN' for model 's', "
        assert expected + f"got {MANY_STRINGS}" in refused

    @pytest.mark.parametrize("surplus", [0, 1])
    def test_client_cancels(self, peer, server, loop, surplus):
        """The model never hears of it, and it is no request in flight, whether its strings are right or wrong."""
        stream = peer.call(peer.STREAM, ended=False)
        self.feed(peer, stream, self.ask(MANY_STRINGS + surplus).SerializeToString(), b"")
        assert server.memory.live == 1
        peer.cancel(stream)
        while loop.turn():
            pass
        assert server.instance.jobs == []
        assert server.is_idle()

    def test_server_drains(self, peer, server, loop):
        """A stream whose strings are being counted is not idle."""
        stream = peer.call(peer.STREAM, ended=False)
        self.feed(peer, stream, self.ask().SerializeToString())
        peer.connection.close_idle()
        while loop.turn():
            pass
        server.instance.answer()
        peer.pump()
        assert len(peer[stream].messages) == 1
        assert peer[stream].status[0] == 14


class TestPendingBytes:
    def limit_of(self, server, nbytes):
        """Lower the budget, of which a connection may have a half."""
        server.state.pending_bytes = PendingBytes(nbytes, server.state.turns)

    def test_gathered(self, dial, ask, server):
        """A message that is not complete is refused once there is no room for more of it."""
        self.limit_of(server, 4 * LARGE_BYTES)
        peer = dial()
        stream = peer.call(peer.INFER, raw=b"\0\x7f\0\0\0\x0a\xff\xff\xff\x07" + bytes(LARGE_BYTES), ended=False)
        assert server.state.pending_bytes.used == LARGE_BYTES + 5
        other = peer.call(peer.INFER, raw=b"\0\x7f\0\0\0\x0a\xff\xff\xff\x07" + bytes(1000), ended=False)
        assert peer[stream].status is None
        peer.send(stream, raw=bytes(2 * LARGE_BYTES))
        code, message = peer[stream].status
        assert code == RESOURCE_EXHAUSTED
        assert "--max-pending-bytes" in message
        assert peer[other].status is None
        assert server.state.pending_bytes.used == 1005
        assert peer[peer.call(SERVICE + "ServerLive", b"")].status == OK
        peer.cancel(other)
        assert server.state.pending_bytes.used == 0

    @pytest.mark.parametrize("count", [1000, len(LARGE)])
    def test_grown(self, dial, ask, server, count):
        """What a message has become counts until its model has answered, beyond what was received."""
        server.instance.waits = True
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        message = packed(ask(*[0.0] * count, raw=False))
        peer.send(stream, message, flag=1, ended=True)
        (job,) = server.instance.jobs
        assert server.state.pending_bytes.used == job.slots[0].size - len(message)
        server.instance.answer()
        peer.pump()
        assert echoed(peer[stream]) == [0.0] * count
        assert server.state.pending_bytes.used == 0

    @pytest.mark.parametrize("method", ["INFER", "STREAM"])
    def test_small_message_without_room(self, dial, ask, server, method):
        """A compressed message that is not long is refused like a long one, and its memory is free."""
        self.limit_of(server, 768 << 10)
        request = service_pb2.ModelInferRequest(model_name="m")
        request.inputs.add(name="IN", datatype="INT64", shape=[1]).contents.int64_contents.extend([0] * 60_000)
        peer = dial()
        stream = peer.call(getattr(peer, method), ended=False, grpc_encoding="gzip")
        peer.send(stream, packed(request), flag=1, ended=True)
        code, reason = peer[stream].status
        assert code == RESOURCE_EXHAUSTED
        assert "--max-pending-bytes" in reason

    def test_decompressed(self, dial, ask, server):
        """Decompression stops when there is no room for more."""
        self.limit_of(server, 4 << 20)
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        peer.send(stream, gzip.compress(bytes(16 << 20)), flag=1, ended=True)
        assert peer[stream].status[0] == RESOURCE_EXHAUSTED
        assert "--max-pending-bytes" in peer[stream].status[1]

    def test_tensors_larger_than_their_message(self, dial, server):
        """Zeros of a byte each become numbers of eight bytes."""
        self.limit_of(server, 6 << 20)
        request = service_pb2.ModelInferRequest(model_name="m")
        request.inputs.add(name="IN", datatype="INT64", shape=[1]).contents.int64_contents.extend([0] * (1 << 20))
        peer = dial()
        stream = peer.call(peer.INFER, request)
        assert peer[stream].status[0] == RESOURCE_EXHAUSTED

    def test_waiting_messages(self, dial, ask, server):
        self.limit_of(server, 6 * LARGE_BYTES)
        peer = dial()
        message = ask(*LARGE, raw=False).SerializeToString()
        data = b"\0" + len(message).to_bytes(4, "big") + message
        stream = peer.call(peer.STREAM, ended=False)
        whole = data * 4
        for at in range(0, len(whole), 16384):
            if not peer[stream].is_over:
                peer.h2.send_data(stream, whole[at : at + 16384])
                peer.transport.feed(peer.h2.data_to_send())
        peer.pump()
        assert peer[stream].status[0] == RESOURCE_EXHAUSTED


class TestOtherMethods:
    @pytest.mark.parametrize("path", [SERVICE + "ServerLive", SERVICE + "LogSettings", "/grpc.health.v1.Health/Watch"])
    @pytest.mark.parametrize("with_head", [True, False])
    def test_long_requests(self, dial, path, with_head):
        """They are refused by their length, before they are there."""
        peer = dial()
        prefix = b"\0" + (REQUEST_BYTES_MAX + 1).to_bytes(4, "big")
        stream = peer.call(path, raw=prefix if with_head else b"", ended=False)
        if not with_head:
            peer.send(stream, raw=prefix)
        peer.send(stream, raw=b"x")
        assert peer[stream].status == (RESOURCE_EXHAUSTED, "Received message larger than max (65537 vs. 65536)")

    @pytest.mark.parametrize("path", [SERVICE + "ServerLive", "/grpc.health.v1.Health/Watch"])
    def test_whole_with_its_head(self, dial, path):
        """The limit is known only when the head is read, which came together with all of the message."""
        peer = dial()
        first = peer.call(path, ended=False)
        stream = peer.h2.get_next_available_stream_id()
        peer.answers[stream] = type(peer[first])()
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
        head |= {"content-type": "application/grpc", "te": "trailers"}
        peer.h2.send_headers(stream, list(head.items()))
        message = bytes(REQUEST_BYTES_MAX + 1)
        data = b"\0" + len(message).to_bytes(4, "big") + message
        for at in range(0, len(data), 16384):
            peer.h2.send_data(stream, data[at : at + 16384])
        peer.pump()
        assert peer[stream].status[0] == RESOURCE_EXHAUSTED
        peer.cancel(first)

    @pytest.mark.parametrize("path", [SERVICE + "ServerLive", "/grpc.health.v1.Health/Watch"])
    def test_compressed(self, dial, path):
        peer = dial()
        stream = peer.call(path, ended=False, grpc_encoding="gzip")
        peer.send(stream, gzip.compress(bytes(REQUEST_BYTES_MAX + 1)), flag=1)
        assert peer[stream].status[0] == RESOURCE_EXHAUSTED

    def test_load_while_requests_control_nothing(self, dial, server):
        """The head suffices to refuse it."""

        def check_explicit():
            raise InferenceError("explicit model load / unload is not allowed", Code.UNAVAILABLE)

        server.state.control = SimpleNamespace(check_explicit=check_explicit)
        peer = dial()
        for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            stream = peer.call(SERVICE + name, ended=False)
            assert peer[stream].status == (14, "explicit model load / unload is not allowed")

    def test_load_of_many_parameters(self):
        """They are counted before protobuf makes objects of them."""
        entry = b"\x1a\6\x0a\0\x12\2\x08\1"
        count = repository_methods.LOAD_FIELDS_MAX // 4
        assert len(repository_methods.parse_load(entry * count).parameters) == 1
        with pytest.raises(InferenceError, match="the request has 16388 fields, expected at most 16384"):
            repository_methods.parse_load(entry * (count + 1))
        with pytest.raises(DecodeError):
            repository_methods.parse_load(entry[:-1])

    @pytest.mark.parametrize("encoding", ["", "gzip"])
    def test_copies_of_a_long_load(self, dial, server, encoding):
        """They count while it is parsed, and no longer when the load is under way."""
        used = []
        pending = server.state.pending_bytes

        async def load(name, config, files):
            used.append(pending.used)

        server.state.control = SimpleNamespace(check_explicit=lambda: None, load=load)
        request = service_pb2.RepositoryModelLoadRequest(model_name="new")
        request.parameters["file:1/model.py"].bytes_param = bytes(3 * REQUEST_BYTES_MAX)
        size = request.ByteSize()

        def status(room):
            """Of a load by a connection that may have so many bytes."""
            pending.connection_limit = room
            peer = dial()
            if not encoding:
                return peer[peer.call(SERVICE + "RepositoryModelLoad", request)].status[0]
            stream = peer.call(SERVICE + "RepositoryModelLoad", ended=False, grpc_encoding=encoding)
            peer.send(stream, packed(request), flag=1, ended=True)
            return peer[stream].status[0]

        assert status(2 * size - 1) == RESOURCE_EXHAUSTED
        assert used == []
        # Its decompression takes whole pieces.
        assert status(2 * size if not encoding else 1 << 30) == 0
        assert used == [size]

    def test_long_load(self, dial, server, monkeypatch):
        """A request with files is parsed in a thread, compressed or not."""
        loaded = []

        async def load(name, config, files):
            loaded.append((name, files))

        server.state.control = SimpleNamespace(check_explicit=lambda: None, load=load)
        request = service_pb2.RepositoryModelLoadRequest(model_name="new")
        request.parameters["file:1/model.py"].bytes_param = bytes(3 * REQUEST_BYTES_MAX)
        peer = dial()
        path = SERVICE + "RepositoryModelLoad"
        assert peer[peer.call(path, request)].status == OK
        stream = peer.call(path, ended=False, grpc_encoding="gzip")
        peer.send(stream, packed(request), flag=1, ended=True)
        assert peer[stream].status == OK
        assert loaded == [("new", {"file:1/model.py": bytes(3 * REQUEST_BYTES_MAX)})] * 2
