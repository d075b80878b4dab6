# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import base64

import orjson
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from pyruntime.runtime.tracing.spans import count_spans, encode_spans

OFFSET_NS = 10**18


def decode(body):
    """The request as protobuf has it. OTLP has ids in hexadecimal, where protobuf's own JSON has base64."""
    document = orjson.loads(body)
    for resource_spans in document["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                for field in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[field] = base64.b64encode(bytes.fromhex(span[field])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def spans_of(*traces):
    (resource_spans,) = decode(encode_spans(traces, [], "1", OFFSET_NS)).resource_spans
    return list(resource_spans.scope_spans[0].spans)


def attributes(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def note_request(trace):
    for at, name in enumerate(
        [
            "HTTP_RECV_START",
            "REQUEST_START",
            "QUEUE_START",
            "COMPUTE_START",
            "COMPUTE_END",
            "REQUEST_END",
            "HTTP_SEND_END",
        ],
        100,
    ):
        trace.note(name, at)
    return trace


def test_resource():
    """The service says who it is, and the spans who made them."""
    (resource_spans,) = decode(encode_spans([], [("service.name", "s"), ("a", "b")], "1.2", 0)).resource_spans
    assert attributes(resource_spans.resource.attributes) == {"service.name": "s", "a": "b"}
    (scope_spans,) = resource_spans.scope_spans
    assert (scope_spans.scope.name, scope_spans.scope.version) == ("pyruntime", "1.2")


def test_request(traces, spans):
    """A request is three spans, one in the other, each with what happened in it."""
    request, model, compute = spans_of(note_request(traces.trace(id=4, request_id="r", spans=spans[0])))
    assert [span.name for span in (request, model, compute)] == ["InferRequest", "m", "compute"]
    assert {span.trace_id.hex() for span in (request, model, compute)} == {"a" * 32}
    assert (request.span_id.hex(), request.parent_span_id.hex()) == ("1" * 16, "b" * 16)
    assert (model.span_id.hex(), model.parent_span_id.hex()) == ("2" * 16, "1" * 16)
    assert (compute.span_id.hex(), compute.parent_span_id.hex()) == ("3" * 16, "2" * 16)
    assert [span.kind for span in (request, model, compute)] == [
        Span.SPAN_KIND_SERVER,
        Span.SPAN_KIND_INTERNAL,
        Span.SPAN_KIND_INTERNAL,
    ]
    assert [(event.name, event.time_unix_nano - OFFSET_NS) for event in request.events] == [
        ("HTTP_RECV_START", 100),
        ("HTTP_SEND_END", 106),
    ]
    times = [(span.start_time_unix_nano - OFFSET_NS, span.end_time_unix_nano - OFFSET_NS) for span in (model, compute)]
    assert times == [(101, 105), (103, 104)]
    assert attributes(model.attributes) == {
        "triton.model_name": "m",
        "triton.model_version": 3,
        "triton.trace_id": 4,
        "triton.trace_parent_id": 0,
        "triton.request_id": "r",
    }
    assert request.status.code == Status.STATUS_CODE_UNSET


def test_call(traces, spans):
    """A call has no client, and so no span for one."""
    trace = note_request(traces.trace(id=5, parent_id=4, spans=spans[1]))
    model, compute = spans_of(trace)
    assert (model.parent_span_id.hex(), compute.parent_span_id.hex()) == ("2" * 16, "4" * 16)
    assert attributes(model.attributes)["triton.trace_parent_id"] == 4
    assert "triton.request_id" not in attributes(model.attributes)
    assert count_spans(trace) == 2


def test_without_parent(traces, spans):
    """A request of a client that traces nothing is a root."""
    (request, *_) = spans_of(note_request(traces.trace(spans=spans[0]._replace(parent=""))))
    assert request.parent_span_id == b""


def test_failure(traces, spans):
    """A failed request has its failure as status; it has no span of an execution."""
    trace = traces.trace(spans=spans[0])
    trace.note("REQUEST_START", 1)
    trace.note("REQUEST_END", 2)
    trace.failure = "no luck"
    request, model = spans_of(trace)
    assert (request.status.code, request.status.message) == (Status.STATUS_CODE_ERROR, "no luck")
    assert model.status == request.status
    assert count_spans(trace) == 3


def test_failed_call(traces, spans):
    """The execution itself is not blamed."""
    trace = note_request(traces.trace(parent_id=1, spans=spans[1]))
    trace.failure = "no luck"
    model, compute = spans_of(trace)
    assert (model.status.code, compute.status.code) == (Status.STATUS_CODE_ERROR, Status.STATUS_CODE_UNSET)


def test_only_http(traces, spans):
    """Of a request that did not get to its model there is one span; of one of which nothing is known, none."""
    trace = traces.trace(spans=spans[0])
    assert spans_of(trace) == []
    trace.note("HTTP_RECV_START", 1)
    assert [span.name for span in spans_of(trace)] == ["InferRequest"]
