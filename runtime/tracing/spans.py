# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes traces as spans of OpenTelemetry, in the JSON form of its protocol (OTLP). (pure)

A client's request is a span "InferRequest". Its child has the model's name, and has a child "compute". A call to
another model is a span with that model's name, below the span of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.runtime.tracing.trace import SpanIds, Trace

_SCOPE = "pyruntime"
# The kinds of spans, and the status of a failed one.
_INTERNAL = 1
_SERVER = 2
_ERROR = 2

_OF_MODEL = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
_OF_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")

Events = list[tuple[str, int]]


def encode_spans(
    traces: Iterable[Trace], resource: Sequence[tuple[str, str]], version: str, unix_offset_ns: int
) -> bytes:
    """The body of an ExportTraceServiceRequest.

    `resource` has the attributes of the service, `version` is pyruntime's; `unix_offset_ns` is the difference between
    the Unix time and the monotonic clock.
    """
    spans = [span for trace in traces for span in _spans(trace, unix_offset_ns)]
    scope_spans = [{"scope": {"name": _SCOPE, "version": version}, "spans": spans}]
    attributes = [_attribute(name, value) for name, value in resource]
    return orjson.dumps({"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": scope_spans}]})


def count_spans(trace: Trace) -> int:
    """The most spans that a trace can become."""
    return 3 if trace.spans is not None and trace.spans.request else 2


def _spans(trace: Trace, offset_ns: int) -> list[JsonObject]:
    ids = trace.spans
    assert ids is not None  # traces that are sent have them
    events = [(name, what + offset_ns) for name, what in trace.notes if isinstance(what, int)]
    if not events:
        return []
    model = [event for event in events if event[0] in _OF_MODEL]
    compute = [event for event in events if event[0] in _OF_COMPUTE]
    spans = []
    if ids.request:
        request = [event for event in events if event[0] not in _OF_MODEL + _OF_COMPUTE]
        times = [ns for _, ns in events]
        span = _span(ids, ids.request, ids.parent, "InferRequest", _SERVER, request, (min(times), max(times)))
        spans.append(span)
    if model:
        span = _span(ids, ids.model, ids.request or ids.parent, trace.model_name, _INTERNAL, model)
        attributes: list[JsonValue] = [
            _attribute("triton.model_name", trace.model_name),
            _attribute("triton.model_version", trace.model_version),
            _attribute("triton.trace_id", trace.id),
            _attribute("triton.trace_parent_id", trace.parent_id),
        ]
        if trace.request_id:
            attributes.append(_attribute("triton.request_id", trace.request_id))
        span["attributes"] = attributes
        spans.append(span)
    if compute:
        spans.append(_span(ids, ids.compute, ids.model, "compute", _INTERNAL, compute))
    if trace.failure:
        for span in spans[: 2 if ids.request else 1]:
            span["status"] = {"code": _ERROR, "message": trace.failure}
    return spans


def _span(
    ids: SpanIds, id: str, parent: str, name: str, kind: int, events: Events, times: tuple[int, int] | None = None
) -> JsonObject:
    start_ns, end_ns = times or (events[0][1], events[-1][1])
    span: JsonObject = {
        "traceId": ids.trace,
        "spanId": id,
        "name": name,
        "kind": kind,
        # 64-bit integers are strings in the JSON form of protobuf.
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "events": [{"timeUnixNano": str(ns), "name": event} for event, ns in events],
    }
    if parent:
        span["parentSpanId"] = parent
    return span


def _attribute(key: str, value: str | int) -> JsonObject:
    return {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
