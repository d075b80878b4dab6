# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traced requests over HTTP, over a transport that notes written data: see conftest.py."""

import json

import pytest

from pyruntime.runtime.frontends.http.request_head import HeadReader
from pyruntime.runtime.settings import TraceSettings
from pyruntime.runtime.tracing.tracer import Tracer
from pyruntime.runtime.tracing.writer import TraceWriter
from pyruntime.utils.errors import InferenceError

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INPUT = {"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}
LARGE = {"inputs": [{"name": "IN", "shape": [12000], "datatype": "FP32", "data": [1.5] * 12000}]}
RECEIVED = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START"]
SENT = ["HTTP_SEND_START", "HTTP_SEND_END"]


def request(path, document, headers=b""):
    body = json.dumps(document).encode()
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), headers, len(body), body)


def infer(document=INPUT, headers=b""):
    return request("/v2/models/m/infer", document, headers)


@pytest.fixture
def traced(server, monkeypatch):
    """The traces that `server`, which traces every request, has written."""
    traces = []
    monkeypatch.setattr(TraceWriter, "put", lambda self, write: traces.extend(write.traces))
    settings = TraceSettings(levels=("TIMESTAMPS",), rate=1, file="f")
    server.trace_with(Tracer(settings, "1", lambda name: True))
    return traces


def names(trace):
    return [name for name, _ in trace.notes]


def is_in_order(trace):
    times = [ns for _, ns in trace.notes]
    return times == sorted(times)


class TestInference:
    def test_answered(self, server, traced):
        """A request is noted from its head on, until its response is sent."""
        transport = server.connect()
        transport.feed(infer())
        (trace,) = traced
        assert names(trace) == [*RECEIVED, "INFER_RESPONSE_COMPLETE", "REQUEST_END", *SENT]
        assert is_in_order(trace)
        assert (trace.model_name, trace.model_version, trace.request_id) == ("m", 1, "")
        assert transport.statuses() == [200]
        assert server.is_idle()

    def test_large(self, server, traced):
        """A large response is sent when the client has taken it."""
        transport = server.connect()
        transport.stalled = True
        transport.feed(infer(LARGE))
        assert traced == []
        transport.drain()
        (trace,) = traced
        assert names(trace)[-2:] == SENT
        assert server.instance.released == 1

    def test_refused(self, server, traced):
        """A request that does not reach its model has no trace."""
        transport = server.connect()
        transport.feed(infer({"inputs": []}))
        assert (transport.statuses(), traced) == ([400], [])

    def test_failed(self, server, traced):
        """An error is an answer."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer())
        server.instance.say(InferenceError("no luck"), final=True)
        (trace,) = traced
        assert names(trace) == [*RECEIVED, "REQUEST_END", *SENT]
        assert (trace.failure, transport.statuses()) == ("no luck", [500])

    def test_queue_full(self, server, traced, monkeypatch):
        """A request that the model cannot take is refused, and its trace complete."""

        def start(job):
            job.free()
            job.trace.refused(InferenceError("the queue is full"))
            raise InferenceError("the queue is full")

        monkeypatch.setattr(server.model, "start", start)
        transport = server.connect()
        transport.feed(infer())
        (trace,) = traced
        assert names(trace) == [*RECEIVED, "REQUEST_END", *SENT]
        assert (trace.failure, transport.statuses()) == ("the queue is full", [500])

    def test_client_gone(self, server, traced):
        """A client that hangs up is sent nothing; the trace is complete when the model has answered."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer())
        transport.lose()
        assert traced == []
        server.instance.answer()
        (trace,) = traced
        assert names(trace) == [*RECEIVED, "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
        assert server.is_idle()

    def test_client_gone_before_it_was_due(self, server, traced):
        """A response that waited behind another one is not sent, and its memory free."""
        server.instance.waits = True
        transport = server.connect()
        transport.feed(infer() + infer())
        server.instance.jobs.reverse()
        server.instance.answer(1)
        transport.lose()
        server.instance.answer()
        assert sorted(len(trace.notes) for trace in traced) == [6, 6]
        assert server.instance.released == 2
        assert server.is_idle()

    def test_turned_on_meanwhile(self, server, traced):
        """A request that came in before anybody wanted to trace is noted from its arrival on."""
        server.state.tracer.update("", {"trace_level": ["OFF"]})
        transport = server.connect()
        data = infer()
        transport.feed(data[:-1])
        server.state.tracer.update("", {"trace_level": None})
        transport.feed(data[-1:])
        (trace,) = traced
        assert is_in_order(trace)
        assert trace.notes[0][1] == trace.notes[1][1]

    def test_off(self, server, traced):
        """Without a level nothing is noted."""
        server.state.tracer.update("", {"trace_level": ["OFF"]})
        server.connect().feed(infer())
        assert traced == []


class TestGenerate:
    def test_one_response(self, server, traced):
        """The one response is sent at the end."""
        transport = server.connect()
        transport.feed(request("/v2/models/m/generate", {"IN": 1}))
        (trace,) = traced
        assert names(trace) == [*RECEIVED, "INFER_RESPONSE_COMPLETE", "REQUEST_END", *SENT]
        assert transport.statuses() == [200]

    def test_too_many_responses(self, server, traced):
        """The client is answered before the model has come to its end, and the trace has both."""
        transport = server.connect()
        transport.feed(request("/v2/models/d/generate", {"IN": 1}))
        server.decoupled.say(1.0)
        server.decoupled.say(2.0)
        assert transport.statuses() == [500]
        assert traced == []
        server.decoupled.say(None, final=True)
        (trace,) = traced
        assert names(trace) == [
            *RECEIVED, "INFER_RESPONSE_COMPLETE", "INFER_RESPONSE_COMPLETE", *SENT, "REQUEST_END"
        ]  # fmt: skip

    def test_stream(self, server, traced):
        """Each piece is noted when it is sent."""
        transport = server.connect()
        transport.feed(request("/v2/models/d/generate_stream", {"IN": 1}))
        server.decoupled.say(1.0)
        server.decoupled.say(2.0)
        server.decoupled.say(None, final=True)
        (trace,) = traced
        piece = ["INFER_RESPONSE_COMPLETE", *SENT]
        assert names(trace) == [*RECEIVED, *piece, *piece, "REQUEST_END", *SENT]
        assert is_in_order(trace)
        assert server.decoupled.released == 2

    def test_stream_of_a_client_that_goes(self, server, traced):
        """The remaining responses are dropped, and the model's final response completes the trace."""
        transport = server.connect()
        transport.feed(request("/v2/models/d/generate_stream", {"IN": 1}))
        server.decoupled.say(1.0)
        transport.lose()
        server.decoupled.say(2.0)
        server.decoupled.say(None, final=True)
        (trace,) = traced
        assert names(trace)[-2:] == ["INFER_RESPONSE_COMPLETE", "REQUEST_END"]
        assert server.decoupled.released == 2


class TestTraceparent:
    def test_of_a_request(self, server, traced, monkeypatch):
        """The span that the client names is the parent."""
        settings = TraceSettings(mode="opentelemetry", levels=("TIMESTAMPS",), rate=1000)
        server.trace_with(Tracer(settings, "1", lambda name: True))
        transport = server.connect()
        transport.feed(infer(headers=b"TraceParent: %b\r\n" % TRACEPARENT))
        transport.feed(infer())
        (trace,) = traced
        assert (trace.spans.trace, trace.spans.parent) == (TRACEPARENT[3:35].decode(), TRACEPARENT[36:52].decode())

    @pytest.mark.parametrize(
        ("headers", "found"),
        [
            ([b"traceparent: %b" % TRACEPARENT], TRACEPARENT),
            ([b"TRACEPARENT:%b\t " % TRACEPARENT, b"A: b"], TRACEPARENT),
            ([b"A: b", b"traceparent: %b-more" % (b"cc" + TRACEPARENT[2:])], b""),
            ([b"traceparent: junk"], b""),
            ([b"traceparent: %b" % TRACEPARENT, b"traceparent: %b" % TRACEPARENT], b""),
            ([b"x-traceparent: %b" % TRACEPARENT], b""),
        ],
    )
    def test_found(self, headers, found):
        """A head has it if it is there once, and in the form that it has to have."""
        head = HeadReader().read(b"\r\n".join([b"GET /v2 HTTP/1.1", b"Host: x", *headers]) + b"\r\n\r\n")
        assert head.traceparent == found.decode()

    def test_forwarded(self):
        """A model that is to have the header has that of its own request."""
        reader = HeadReader(pattern="traceparent")
        for spans in (TRACEPARENT, TRACEPARENT.replace(b"b7", b"c8")):
            head = reader.read(b"GET /v2 HTTP/1.1\r\nHost: x\r\ntraceparent: %b\r\n\r\n" % spans)
            assert head.traceparent == spans.decode()
            assert [value for _, value in head.forwarded] == [spans.decode()]

    def test_no_way_around_the_parser(self):
        """Leaving out a header cannot hide a folded line: it is refused as usual."""
        reader = HeadReader()
        with pytest.raises(Exception, match="malformed"):
            reader.read(b"GET /v2 HTTP/1.1\r\nHost: x\r\ntraceparent: %b\r\n a: b\r\n\r\n" % TRACEPARENT)
