# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of inference over a real session, with models of straw behind it: order, cancellation, memory, counts."""

import gzip
import struct

import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import stream_infer_call, unpacking
from pyruntime.runtime.frontends.grpc.call import GIVES_WAY, SHUTTING_DOWN
from pyruntime.runtime.frontends.grpc.connection import QUIET_CHECKS
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.errors import InferenceError, OutOfMemoryError

OK = (0, "")
LARGE = [float(n) for n in range(LARGE_BYTES // 4 + 100)]


def values(response):
    (contents,) = response.raw_output_contents
    return list(struct.unpack(f"<{len(contents) // 4}f", contents))


def infer_response(answer):
    ((flag, message),) = answer.messages
    assert flag == 0
    return service_pb2.ModelInferResponse.FromString(message)


def events(answer):
    return [service_pb2.ModelStreamInferResponse.FromString(message) for _, message in answer.messages]


def echoes(answer):
    """The events of a stream's answer: the first value of each, or the message of its error."""
    return [event.error_message or values(event.infer_response)[0] for event in events(answer)]


@pytest.fixture(autouse=True)
def _balanced(server):
    """No call leaves requests, expected bytes or memory behind."""
    yield
    server.instance.answer()
    while server.decoupled.jobs:
        server.decoupled.say(InferenceError("enough"), final=True)
    assert server.state.in_flight == 0
    assert server.state.intake.expected_bytes == 0
    assert server.memory.live == 0
    assert server.model._expected == 0


class TestUnary:
    @pytest.mark.parametrize("contents", [[1.0, 2.0], LARGE])
    def test_is_answered(self, dial, ask, server, contents):
        peer = dial()
        for _ in range(3):
            answer = peer[peer.call(peer.INFER, ask(*contents, id="7"))]
            assert answer.status == OK
            response = infer_response(answer)
            assert (response.model_name, response.id, values(response)) == ("m", "7", contents)
        assert server.instance.released == 3

    @pytest.mark.parametrize("contents", [[1.0], LARGE])
    def test_client_cancels_while_it_waits(self, dial, ask, server, contents):
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.INFER, ask(*contents))
        assert server.state.in_flight == 1
        peer.cancel(stream)
        assert server.state.in_flight == 0
        assert len(server.instance.cancelled) == 1
        server.instance.answer()
        assert server.instance.released == 1

    def test_a_cancelled_call_is_one_line_of_the_verbose_log(self, dial, ask, server, caplog):
        """None is written while the log is not verbose."""
        caplog.set_level("DEBUG", "pyruntime.frontends")
        peer = dial()
        server.instance.waits = True
        line = "Cancellation notification received for /inference.GRPCInferenceService/ModelInfer"
        peer.cancel(peer.call(peer.INFER, ask(1.0)))
        assert line not in caplog.messages
        server.state.log_settings.update({"log_verbose_level": 2})
        peer.cancel(peer.call(peer.INFER, ask(1.0)))
        assert caplog.messages.count(line) == 1

    @pytest.mark.parametrize("sent", [1, 5, 100, LARGE_BYTES + 200])
    def test_client_goes_inside_of_a_message(self, dial, ask, sent):
        for leave in ("cancel", "hang_up"):
            peer = dial()
            message = ask(*LARGE).SerializeToString()
            stream = peer.call(peer.INFER, ended=False, raw=(b"\0" + len(message).to_bytes(4, "big") + message)[:sent])
            peer.hang_up() if leave == "hang_up" else peer.cancel(stream)

    def test_client_hangs_up(self, dial, ask, server):
        server.instance.waits = True
        peer = dial()
        peer.call(peer.INFER, ask(1.0))
        peer.hang_up()
        assert server.state.in_flight == 0
        assert len(server.instance.cancelled) == 1

    def test_deadline(self, dial, ask, server, loop):
        server.instance.waits = True
        peer = dial()
        stream = peer.call(peer.INFER, ask(1.0), grpc_timeout="2S")
        loop.advance(1.9)
        peer.pump()
        assert peer[stream].status is None
        loop.advance(0.2)
        peer.pump()
        assert peer[stream].status == (4, "Deadline Exceeded")
        assert len(server.instance.cancelled) == 1

    def test_deadline_while_a_large_message_comes_in(self, dial, ask, loop):
        """No more of it is written to memory that is somebody else's by then."""
        peer = dial()
        message = ask(*LARGE).SerializeToString()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        stream = peer.call(peer.INFER, ended=False, raw=framed[:-10], grpc_timeout="2S")
        loop.advance(3.0)
        peer.pump()
        assert peer[stream].status[0] == 4

    @pytest.mark.parametrize("timeout", ["", "S", "1", "1x", "-1S", "123456789S", "1 S"])
    def test_deadline_that_is_none(self, dial, ask, timeout):
        peer = dial()
        assert peer[peer.call(peer.INFER, ask(1.0), grpc_timeout=timeout)].status[0] == 13

    def test_second_message(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        answer = peer[peer.call(peer.INFER, ask(1.0), ask(2.0))]
        assert answer.status == (13, "a call of one request has a second message")

    def test_second_message_that_is_large(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        answer = peer[peer.call(peer.INFER, ask(1.0), ask(*LARGE))]
        assert answer.status == (13, "a call of one request has a second message")

    def test_no_message(self, dial):
        peer = dial()
        assert peer[peer.call(peer.INFER)].status == (13, "a call of one request has no message")

    def test_message_that_is_none(self, dial):
        peer = dial()
        assert peer[peer.call(peer.INFER, b"\xff\xff\xff")].status[0] == 13
        assert peer[peer.call(peer.INFER, b"\x0a\x05ab")].status[0] == 13
        assert peer[peer.call(peer.INFER, ended=False, raw=b"\x07\0\0\0\1a")].status[0] == 13
        assert peer[peer.call(peer.INFER, raw=b"\0\0\0\0\2a")].status[0] == 13

    def test_id_that_is_no_text(self, dial, ask):
        peer = dial()
        assert peer[peer.call(peer.INFER, ask(1.0).SerializeToString() + b"\x1a\x01\xff")].status[0] == 13

    def test_message_that_is_too_large(self, dial):
        peer = dial()
        answer = peer[peer.call(peer.INFER, ended=False, raw=b"\0\x80\0\0\0")]
        assert answer.status == (8, "Received message larger than max (2147483648 vs. 2147483647)")

    def test_message_that_is_only_announced_has_no_memory(self, dial, ask, server):
        """However many do it."""
        peer = dial()
        start = ask(1.0).SerializeToString()
        reserved = server.memory.region.used_bytes
        lie = b"\0\x7f\xff\xff\xff" + start[:-6] + b"\x3a\xf0\xff\xff\xff\x07" + bytes(100)
        streams = [peer.call(peer.INFER, ended=False, raw=lie) for _ in range(50)]
        assert server.memory.region.used_bytes - reserved <= 1 << 30
        for stream in streams:
            peer.cancel(stream)

    def test_compressed(self, dial, ask):
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        peer.send(stream, gzip.compress(ask(3.0).SerializeToString()), flag=1, ended=True)
        assert values(infer_response(peer[stream])) == [3.0]

    def test_compressed_without_a_name(self, dial, ask):
        peer = dial()
        stream = peer.call(peer.INFER, ended=False)
        peer.send(stream, gzip.compress(ask(3.0).SerializeToString()), flag=1, ended=True)
        assert peer[stream].status[0] == 13

    def test_compressed_to_nearly_nothing(self, dial, monkeypatch):
        """A small message that would be too large once decompressed is refused without decompressing it."""
        monkeypatch.setattr(unpacking, "DECOMPRESSED_BYTES_MAX", 1 << 20)
        peer = dial()
        stream = peer.call(peer.INFER, ended=False, grpc_encoding="gzip")
        peer.send(stream, gzip.compress(bytes((1 << 20) + 1)), flag=1, ended=True)
        assert peer[stream].status[0] == 8

    def test_model_that_answers_with_what_cannot_be_said(self, dial, ask, server):
        """It costs this call."""
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.INFER, ask(1.0))
        job = server.instance.jobs.pop()
        job.free()
        released = []
        outputs = [OutputTensor("OUT", "FP32", [1], b"1234")]
        job.respond(InferResponse("m", 1, "", outputs, {"n": "\ud800"}, release=lambda: released.append(1)), True)
        peer.pump()
        assert peer[stream].status[0] == 13
        assert released == [1]

    def test_large_message_whose_model_changes_its_name(self, dial, ask, server):
        """Its contents lie in the memory of the model that was named first."""
        peer = dial()
        message = ask(*LARGE).SerializeToString() + service_pb2.ModelInferRequest(model_name="d").SerializeToString()
        assert peer[peer.call(peer.INFER, message)].status[0] == 3
        message = ask(*LARGE).SerializeToString() + service_pb2.ModelInferRequest(model_version="2").SerializeToString()
        assert peer[peer.call(peer.INFER, message)].status[0] == 3

    def test_large_message_whose_model_is_replaced_meanwhile(self, dial, ask, server):
        """It belongs to the version in whose memory it lies, which waits for it."""
        peer = dial()
        message = ask(*LARGE).SerializeToString()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        stream = peer.call(peer.INFER, ended=False, raw=framed[:-10])
        table = server.state.table
        other = table.resolve("d", -1)
        assert server.model._expected == 1
        table.begin_load("m", 1)
        table.ready("m", 1, other)
        peer.send(stream, raw=framed[-10:], ended=True)
        assert values(infer_response(peer[stream])) == LARGE

    def test_memory_of_a_large_message(self, dial, ask, server):
        """It exists as far as the message has come, and is as warm as any other later."""
        region = server.memory.region
        numbers = [float(n) for n in range(500_000)]
        message = ask(*numbers).SerializeToString()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        before = region.used_bytes
        peer = dial()
        streams = [peer.call(peer.INFER, ended=False, raw=framed[:500]) for _ in range(10)]
        assert server.memory.live == 10
        assert region.used_bytes - before < len(message)
        for stream in streams[1:]:
            peer.cancel(stream)
        peer.send(streams[0], raw=framed[500:], ended=True)
        assert values(infer_response(peer[streams[0]])) == numbers
        assert region.used_bytes - before < 2 * len(message)

    @pytest.mark.parametrize("streams", [False, True])
    def test_large_message_without_memory(self, dial, ask, server, monkeypatch, streams):
        """When memory runs out in the middle of it, its request is UNAVAILABLE. A stream goes on."""

        def commit(offset, size):
            raise OutOfMemoryError("no shared memory left")

        peer = dial()
        message = ask(*range(500_000), id="7").SerializeToString()
        framed = b"\0" + len(message).to_bytes(4, "big") + message
        stream = peer.call(peer.STREAM if streams else peer.INFER, ended=False, raw=framed[:500])
        with monkeypatch.context() as patch:
            patch.setattr(server.memory.region, "commit", commit)
            peer.send(stream, raw=framed[500:])
        assert server.memory.live == 0
        if not streams:
            assert peer[stream].status[0] == 14
            assert "no room for a request of " in peer[stream].status[1]
            return
        peer.send(stream, ask(1.0, id="8"), ended=True)
        first, second = [service_pb2.ModelStreamInferResponse.FromString(data) for _, data in peer[stream].messages]
        assert "no room for a request of " in first.error_message
        assert first.infer_response.id == "7"
        assert second.infer_response.id == "8"
        assert not second.error_message

    def test_draining(self, dial, ask, server):
        """Draining answers complete requests and fails incomplete ones."""
        server.instance.waits = True
        peer = dial()
        under_way = peer.call(peer.INFER, ask(1.0))
        half = peer.call(peer.INFER, ended=False, raw=b"\0\0\0")
        server.state.exiting = True
        peer.connection.close_idle()
        peer.pump()
        assert peer[half].status == (14, SHUTTING_DOWN)
        server.instance.answer()
        peer.pump()
        assert peer[under_way].status == OK
        assert peer.transport.closed


class TestStream:
    def test_is_answered_in_order(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        stream = peer.call(
            peer.STREAM, ask(1.0), ask(2.0, model="nobody", id="x"), ask(*LARGE), ask(4.0, id="y"), ended=False
        )
        assert events(peer[stream]) == []
        assert server.state.in_flight == 4
        server.instance.answer(1)
        peer.pump()
        assert echoes(peer[stream]) == [1.0, "Request for unknown model: 'nobody' is not found"]
        server.instance.answer()
        peer.pump()
        assert echoes(peer[stream])[2:] == [0.0, 4.0]
        assert [event.infer_response.id for event in events(peer[stream])] == ["", "x", "", "y"]
        assert peer[stream].status is None
        peer.send(stream, ended=True)
        assert peer[stream].status == OK

    def test_responses_that_are_late_wait_for_those_before(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.STREAM, *(ask(float(n)) for n in range(4)))
        server.instance.jobs.reverse()
        for count in range(3):
            server.instance.answer(1)
            peer.pump()
            assert events(peer[stream]) == [], count
        server.instance.answer(1)
        peer.pump()
        assert echoes(peer[stream]) == [0.0, 1.0, 2.0, 3.0]
        assert peer[stream].status == OK

    def test_errors_of_large_requests_say_whose_they_are(self, dial, ask):
        peer = dial()
        stream = peer.call(peer.STREAM, ask(*LARGE, model="nobody", id="7"), ask(1.0, id="8"))
        first, second = events(peer[stream])
        assert first.error_message
        assert (first.infer_response.id, first.infer_response.model_name) == ("7", "nobody")
        assert second.infer_response.id == "8"

    def test_decoupled_models_are_answered_as_they_answer(self, dial, ask, server):
        peer = dial()
        stream = peer.call(peer.STREAM, ask(1.0, model="d", id="a"), ask(2.0, model="d", id="b"))
        server.decoupled.jobs.reverse()
        server.decoupled.say(5.0)
        server.decoupled.say(6.0, final=True)
        server.decoupled.say(7.0, final=True)
        peer.pump()
        assert echoes(peer[stream]) == [5.0, 6.0, 7.0]
        assert [event.infer_response.id for event in events(peer[stream])] == ["b", "b", "a"]
        finals = [event.infer_response.parameters["triton_final_response"].bool_param for event in events(peer[stream])]
        assert finals == [False, True, True]
        assert peer[stream].status == OK

    @pytest.mark.parametrize("wanted", [True, False])
    def test_empty_final_response(self, dial, ask, server, wanted):
        peer = dial()
        request = ask(1.0, model="d", id="a")
        if wanted:
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        stream = peer.call(peer.STREAM, request)
        server.decoupled.say(5.0)
        server.decoupled.say(None, final=True)
        peer.pump()
        assert len(events(peer[stream])) == 1 + wanted
        last = events(peer[stream])[-1].infer_response
        assert last.parameters["triton_final_response"].bool_param is wanted
        assert peer[stream].status == OK

    def test_ends_at_an_error_if_that_is_wanted(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        requests = [ask(1.0), ask(2.0, model="nobody"), ask(3.0)]
        stream = peer.call(peer.STREAM, *requests, ended=False, triton_grpc_error="true")
        server.instance.answer(1)
        peer.pump()
        assert echoes(peer[stream]) == [1.0]
        assert peer[stream].status == (5, "Request for unknown model: 'nobody' is not found")
        assert len(server.instance.cancelled) == 1

    def test_cancelled_with_responses_that_wait_for_their_turn(self, dial, ask, server):
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.STREAM, ask(1.0), ask(2.0), ask(3.0), ended=False)
        server.instance.jobs.reverse()
        server.instance.answer(2)
        peer.cancel(stream)
        assert server.instance.released == 2
        assert server.state.in_flight == 0
        server.instance.answer()
        assert server.instance.released == 3

    def test_so_many_requests_and_then_the_client_waits(self, dial, ask, server, monkeypatch):
        monkeypatch.setattr(stream_infer_call, "REQUESTS_MAX", 3)
        peer = dial()
        server.instance.waits = True
        stream = peer.call(peer.STREAM, ask(1.0), ask(2.0), ask(3.0), ended=False)
        window = peer.h2.local_flow_control_window(stream)
        peer.send(stream, ask(4.0))
        size = window - peer.h2.local_flow_control_window(stream)
        assert size > 0
        for number in range(40):
            peer.send(stream, ask(float(number)))
        assert peer.h2.local_flow_control_window(stream) == window - 41 * size
        server.instance.answer()
        peer.pump()
        assert len(echoes(peer[stream])) == 44
        peer.send(stream, *(ask(float(n)) for n in range(10)))
        server.instance.answer()
        peer.send(stream, ended=True)
        server.instance.answer()
        peer.pump()
        assert peer[stream].status == OK
        assert len(echoes(peer[stream])) == 54

    def test_errors_for_a_client_that_does_not_read(self, dial, ask, monkeypatch):
        monkeypatch.setattr(stream_infer_call, "WAITING_BYTES_MAX", 100_000)
        peer = dial(settings={4: 0})  # it opens no window at all
        stream = peer.call(peer.STREAM, ended=False)
        for _ in range(3000):
            peer.send(stream, ask(1.0, model="nobody"))
            if peer[stream].trailers or peer.connection.session.queued(stream) > 110_000:
                break
        assert peer.connection.session.queued(stream) <= 101_000
        assert not peer.connection._calls
        peer.hang_up()

    def test_compressed_responses_are_released_when_they_are_taken(self, dial, ask, server):
        """Or a model would answer without end for a client that does not read."""
        object.__setattr__(server.state.settings, "grpc_compression_level", "low")
        peer = dial(settings={4: 0})
        stream = peer.call(peer.STREAM, ask(1.0, model="d"), grpc_accept_encoding="gzip")
        server.decoupled.say(5.0)
        peer.pump()
        assert server.decoupled.released == 0
        peer.h2.increment_flow_control_window(1000, stream)
        peer.pump()
        assert server.decoupled.released == 1
        assert peer[stream].head["grpc-encoding"] == "gzip"
        ((flag, message),) = peer[stream].messages
        event = service_pb2.ModelStreamInferResponse.FromString(gzip.decompress(message))
        assert (flag, values(event.infer_response)) == (1, [5.0])
        server.decoupled.say(None, final=True)
        peer.pump()
        assert peer[stream].status == OK

    def test_model_that_answers_with_what_cannot_be_said(self, dial, ask, server):
        """It costs this request: the stream goes on."""
        peer = dial()
        stream = peer.call(peer.STREAM, ask(1.0, model="d", id="a"), ended=False)
        released = []
        output = OutputTensor("OUT", "FP32", [1], b"1234")
        parameters = {"n": "\ud800"}
        server.decoupled.jobs[0].respond(
            InferResponse("d", 1, "a", [output], parameters, release=lambda: released.append(1)), False
        )
        server.decoupled.say(2.0, final=True)
        peer.send(stream, ended=True)
        assert released == [1]
        assert [type(echo) for echo in echoes(peer[stream])] == [str, float]
        assert peer[stream].status == OK

    def test_gives_way(self, dial, ask, server):
        """A stream without requests is idle after a while; its connection is cut if the client does not close it."""
        peer = dial()
        stream = peer.call(peer.STREAM, ask(1.0), ended=False)
        connection = peer.connection
        for _ in range(QUIET_CHECKS):
            assert not connection.is_idle
            connection._check()
        assert connection.is_idle
        peer.send(stream, ask(2.0))
        assert not connection.is_idle
        for _ in range(QUIET_CHECKS):
            connection._check()
        server.instance.waits = True
        other = peer.call(peer.STREAM, ask(1.0), ended=False)
        for _ in range(QUIET_CHECKS):
            connection._check()
        assert not connection.is_idle  # it waits for the model
        server.instance.answer()
        assert connection.is_idle
        connection.close_idle()
        assert not connection.is_idle
        connection._give_way()
        assert peer.transport.aborted
        peer.hang_up()
        peer.pump()
        assert (peer[stream].status, peer[other].status) == ((14, GIVES_WAY), (14, GIVES_WAY))

    def test_draining(self, dial, ask, server):
        peer = dial()
        idle = peer.call(peer.STREAM, ask(1.0), ended=False)
        server.instance.waits = True
        busy = peer.call(peer.STREAM, ask(2.0), ended=False)
        server.state.exiting = True
        peer.connection.close_idle()
        peer.pump()
        assert peer[idle].status == (14, SHUTTING_DOWN)
        assert peer[busy].status is None
        server.instance.answer()
        peer.pump()
        assert echoes(peer[busy]) == [2.0]
        assert peer[busy].status == (14, SHUTTING_DOWN)
        assert peer.transport.closed
