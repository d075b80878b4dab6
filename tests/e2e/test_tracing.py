# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Traces of real servers: in files, at a collector of OpenTelemetry, and in the models themselves."""

import base64
import json
import threading
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

import numpy as np
import pytest
import tritonclient.grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tritonclient.utils import InferenceServerException

from .harness.models import COUNT, ECHO
from .harness.waiting import LIMIT_S

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
ONE = np.array([1], np.int64)

# Calls the other model twice, and answers with the second response. Logs the context of its trace.
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            print("context", request.trace().get_context(), flush=True)
            for _ in range(2):
                response = pb_utils.InferenceRequest(
                    model_name="CALLEE", requested_output_names=["OUT"], inputs=request.inputs(), trace=request.trace()
                ).exec()
            error = response.error()
            responses.append(pb_utils.InferenceResponse(response.output_tensors(), error))
        return responses
"""
# Makes a span of its own with the SDK, in the span of the request, and says what that is.
SPANS = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

class TritonPythonModel:
    def initialize(self, args):
        self.tracer = TracerProvider().get_tracer("model")

    def execute(self, requests):
        for request in requests:
            context = TraceContextTextMapPropagator().extract(json.loads(request.trace().get_context()))
            with self.tracer.start_as_current_span("own", context) as span:
                print(f"own span of {span.context.trace_id:032x} in {span.parent.span_id:016x}", flush=True)
                assert span.parent.is_remote and span.parent.trace_flags.sampled
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no luck")
"""
IN_ORDER = [
    "HTTP_RECV_START",
    "HTTP_RECV_END",
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "INFER_RESPONSE_COMPLETE",
    "COMPUTE_END",
    "REQUEST_END",
    "HTTP_SEND_START",
    "HTTP_SEND_END",
]
OF_CALL = [name for name in IN_ORDER if "HTTP" not in name]


def config(**settings):
    """The options for settings of tracing; a list for those that are there several times."""
    options = []
    for name, value in settings.items():
        key = name.replace("triton_", "triton,").replace("opentelemetry_", "opentelemetry,")
        options += [f"--trace-config={key}={each}" for each in (value if isinstance(value, list) else [value])]
    return options


def read(path):
    """The traces in a file, by number: (its description, [(activity, ns)], [(activity, tensor)])."""
    traces = {}
    for record in json.loads(path.read_bytes()):
        head, times, tensors = traces.setdefault(record["id"], ({}, [], []))
        if "timestamps" in record:
            ((stamp),) = record["timestamps"]
            times.append((stamp["name"], stamp["ns"]))
        elif "activity" in record:
            tensors.append((record["activity"], record["tensor"]))
        else:
            head.update(record)
    return traces


def names(times):
    return [name for name, _ in times]


@contextmanager
def collector():
    """A collector: (its URL, a queue of spans as they come)."""
    spans = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.headers["Content-Type"] == "application/json"
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
                for field in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[field] = base64.b64encode(bytes.fromhex(span[field])).decode()
            resource_spans = json_format.ParseDict(document, ExportTraceServiceRequest()).resource_spans[0]
            resource = {each.key: each.value.string_value for each in resource_spans.resource.attributes}
            for span in resource_spans.scope_spans[0].spans:
                spans.put((span, resource))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}/v1/traces", spans
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def models(model):
    model("echo", ECHO)
    model("caller", CALLER.replace("CALLEE", "echo"))
    model("outer", CALLER.replace("CALLEE", "caller"))
    model("decoupled", COUNT, more="model_transaction_policy { decoupled: true }")
    model("failing", FAILING)


class TestFiles:
    def test_request(self, models, serve, tmp_path):
        """All times of a request are in the file, in their order, once the server has stopped."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        server.infer("echo", {"IN": ONE}, request_id="mine")
        server.infer("echo", {"IN": ONE})
        server.stop()
        traces = read(path)
        assert [head for head, _, _ in traces.values()] == [
            {"id": 1, "model_name": "echo", "model_version": 1, "request_id": "mine"},
            {"id": 2, "model_name": "echo", "model_version": 1},
        ]
        for _, times, tensors in traces.values():
            assert [name for name, _ in sorted(times, key=lambda each: (each[1], IN_ORDER.index(each[0])))] == IN_ORDER
            assert tensors == []

    def test_valid_while_it_serves(self, models, serve, tmp_path, wait_until):
        """The file is valid while the server runs."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))

        def count():
            with suppress(FileNotFoundError, json.JSONDecodeError):  # it may be just being written
                return len(read(path))

        for expected in (1, 2, 3):
            server.infer("echo", {"IN": ONE})
            wait_until(lambda expected=expected: count() == expected)

    def test_calls(self, models, serve, tmp_path):
        """The trace of a call says which request it was made for; times of calls lie within those of their callers."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        server.infer("outer", {"IN": ONE}, request_id="mine")
        server.stop()
        traces = read(path)
        (outer,) = [head["id"] for head, _, _ in traces.values() if "parent_id" not in head]
        assert traces[outer][0]["model_name"] == "outer"
        callers = [head["id"] for head, _, _ in traces.values() if head["model_name"] == "caller"]
        assert [traces[id][0]["parent_id"] for id in callers] == [outer] * 2
        echoes = [head["parent_id"] for head, _, _ in traces.values() if head["model_name"] == "echo"]
        assert sorted(echoes) == sorted(callers * 2)
        for head, times, _ in traces.values():
            if "parent_id" not in head:
                continue
            assert sorted(names(times)) == sorted(OF_CALL)
            assert "request_id" not in head
            around, within = dict(traces[head["parent_id"]][1]), dict(times)
            assert around["COMPUTE_INPUT_END"] <= within["REQUEST_START"]
            assert within["REQUEST_END"] <= around["COMPUTE_END"]
        assert "context None" in server.log  # no client could make anything of it

    def test_call_without_trace(self, models, model, serve, tmp_path):
        """A call that is not said to belong to a request is not traced."""
        model("silent", CALLER.replace("CALLEE", "echo").replace(", trace=request.trace()", ""))
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        server.infer("silent", {"IN": ONE})
        server.stop()
        assert [head["model_name"] for head, _, _ in read(path).values()] == ["silent"]

    def test_refused_call(self, models, model, serve, tmp_path):
        """A call that could never be served ends, and so does its trace."""
        model("itself", CALLER.replace("CALLEE", "itself"))
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        status, message = server.refusal("itself", {"IN": ONE})
        assert (status, "would wait for ever" in message) == (503, True)
        server.stop()
        traces = read(path)
        assert [head.get("parent_id") for head, _, _ in traces.values()] == [1, 1, None]
        assert all(names(times).count("REQUEST_END") == 1 for _, times, _ in traces.values())

    def test_tensors(self, models, serve, tmp_path):
        """Inputs and outputs are in the file, and times only if they are wanted, too."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TENSORS"))
        server.infer("caller", {"IN": np.array([3, -4])})
        server.stop()
        tensor = {"data": "3,-4", "shape": "2", "dtype": "INT64"}
        for head, times, tensors in read(path).values():
            assert times == [], head
            assert tensors == [
                ("TENSOR_QUEUE_INPUT", {"name": "IN", **tensor}),
                ("TENSOR_BACKEND_OUTPUT", {"name": "OUT", **tensor}),
            ]

    def test_stream(self, models, serve, tmp_path):
        """Each response of a decoupled model is noted."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level=["TIMESTAMPS", "TENSORS"]))
        assert len(server.stream("decoupled", IN=[3])) == 3
        server.stop()
        ((_, times, tensors),) = read(path).values()
        assert names(times).count("INFER_RESPONSE_COMPLETE") == 3
        assert names(times).count("HTTP_SEND_END") == 4  # the end is sent as well
        for name in ("COMPUTE_START", "COMPUTE_END", "REQUEST_END"):
            assert names(times).count(name) == 1
        assert [each["data"] for name, each in tensors if name == "TENSOR_BACKEND_OUTPUT"] == ["0", "1", "2"]

    def test_grpc(self, models, serve, tmp_path):
        """Requests over gRPC are traced as well, those of streams each for itself."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        tensor = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([2]))
        answers = SimpleQueue()
        with closing(server.grpc()) as client:
            client.infer("echo", [tensor], request_id="unary")
            client.start_stream(lambda result, error: answers.put(error))
            client.async_stream_infer("echo", [tensor], request_id="stream")
            client.async_stream_infer("decoupled", [tensor], request_id="decoupled")
            assert [answers.get(timeout=LIMIT_S) for _ in range(3)] == [None] * 3
            client.stop_stream()
        server.stop()
        traces = {head["request_id"]: times for head, times, _ in read(path).values()}
        waited, sent = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"], ["GRPC_SEND_START", "GRPC_SEND_END"]
        for id in ("unary", "stream"):
            assert sorted(names(traces[id])) == sorted([*waited, *OF_CALL, *sent])
        assert names(traces["decoupled"]).count("INFER_RESPONSE_COMPLETE") == 2
        assert names(traces["decoupled"]).count("GRPC_SEND_END") == 3

    def test_failure(self, models, serve, tmp_path):
        """A request that fails in its model is traced like any other."""
        path = tmp_path / "trace.json"
        server = serve(*config(triton_file=path, rate=1, level="TIMESTAMPS"))
        server.refusal("failing", {"IN": ONE})
        server.stop()
        ((_, times, _),) = read(path).values()
        assert sorted(names(times)) == sorted(set(IN_ORDER) - {"INFER_RESPONSE_COMPLETE"})

    def test_log_frequency(self, models, serve, tmp_path, wait_until):
        """The given number of traces goes to a file of its own; the remaining ones at the end do, too."""
        server = serve(*config(triton_file=tmp_path / "t", rate=1, level="TIMESTAMPS", **{"triton_log-frequency": 2}))
        for _ in range(5):
            server.infer("echo", {"IN": ONE})
        wait_until(lambda: (tmp_path / "t.1").exists())
        server.stop()
        assert [list(read(tmp_path / f"t.{index}")) for index in range(3)] == [[1, 2], [3, 4], [5]]
        assert not (tmp_path / "t").exists()

    def test_rate_and_count(self, models, serve, tmp_path, wait_until):
        """Every second request is traced, and two in all; then they are written."""
        server = serve(*config(triton_file=tmp_path / "t", rate=2, count=2, level="TIMESTAMPS"))
        for number in range(8):
            server.infer("echo", {"IN": ONE}, request_id=str(number))
        wait_until(lambda: (tmp_path / "t.0").exists())
        assert [head["request_id"] for head, _, _ in read(tmp_path / "t.0").values()] == ["1", "3"]
        with closing(server.client()) as client:
            assert client.get_trace_settings()["trace_count"] == "0"

    def test_older_options(self, models, serve, tmp_path):
        """Triton's deprecated options do the same."""
        server = serve(f"--trace-file={tmp_path / 't'}", "--trace-rate=1", "--trace-level=TIMESTAMPS")
        server.infer("echo", {"IN": ONE})
        server.stop()
        assert list(read(tmp_path / "t")) == [1]

    def test_no_such_folder(self, models, serve, tmp_path):
        """A file that cannot be written costs the traces, and no request."""
        server = serve(*config(triton_file=tmp_path / "no" / "t", rate=1, level="TIMESTAMPS"))
        server.infer("echo", {"IN": ONE})
        server.stop()
        assert f"traces are lost, because '{tmp_path}/no/t' cannot be written" in server.log


class TestSettings:
    def test_over_http(self, models, serve, tmp_path):
        """Clients see and change settings, of all models and of one."""
        path = tmp_path / "t"
        server = serve(*config(triton_file=path))
        shown = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(path),
            "trace_mode": "triton",
        }
        with closing(server.client()) as client:
            assert client.get_trace_settings() == shown
            server.infer("echo", {"IN": ONE}, request_id="before")
            change = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
            assert client.update_trace_settings("echo", change) == shown | change
            assert client.get_trace_settings() == shown
            server.infer("echo", {"IN": ONE}, request_id="traced")
            server.infer("caller", {"IN": ONE}, request_id="not traced")
            assert client.update_trace_settings("echo", {"trace_level": None, "trace_rate": None}) == shown
            server.infer("echo", {"IN": ONE}, request_id="after")
            with pytest.raises(InferenceServerException, match="trace file location can not be updated") as caught:
                client.update_trace_settings(settings={"trace_file": "x"})
            assert caught.value.status() == "501"
            with pytest.raises(InferenceServerException, match="Unable to parse 'trace_rate', got: x") as caught:
                client.update_trace_settings(settings={"trace_rate": "x"})
            assert caught.value.status() == "400"
            with pytest.raises(InferenceServerException, match="Request for unknown model : nobody"):
                client.get_trace_settings("nobody")
        server.stop()
        assert [head["request_id"] for head, _, _ in read(path).values()] == ["traced"]

    def test_over_grpc(self, models, serve, tmp_path):
        """The same, and a setting without values is cleared."""
        server = serve(*config(triton_file=tmp_path / "t", rate=7))

        def shown(response):
            return {name: setting["value"] for name, setting in response["settings"].items()}

        with closing(server.grpc()) as client:
            before = shown(client.get_trace_settings(as_json=True))
            assert (before["trace_level"], before["trace_rate"], before["trace_mode"]) == (["OFF"], ["7"], ["triton"])
            change = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "3"}
            after = shown(client.update_trace_settings("echo", change, as_json=True))
            assert after == before | {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["3"]}
            assert shown(client.get_trace_settings("caller", as_json=True)) == before
            cleared = {"trace_level": [], "trace_rate": None}
            assert shown(client.update_trace_settings("echo", cleared, as_json=True)) == before
            for settings, message in (
                ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
                ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
                ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
            ):
                with pytest.raises(InferenceServerException) as caught:
                    client.update_trace_settings(settings=settings)
                assert caught.value.message() == message


class TestOpenTelemetry:
    def start(self, serve, url, **settings):
        return serve(
            *config(mode="opentelemetry", opentelemetry_url=url, opentelemetry_bsp_schedule_delay=50, **settings)
        )

    def test_request_of_a_client(self, models, serve):
        """The client's trace goes on in the server, in the model, and in the models that it calls."""
        with collector() as (url, came):
            resource = ["service.name=mine", "a=b"]
            server = self.start(serve, url, level="TIMESTAMPS", rate=1000, opentelemetry_resource=resource)
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
            server.infer("caller", {"IN": ONE}, request_id="mine", headers=headers)
            spans = [came.get(timeout=LIMIT_S) for _ in range(7)]
            server.stop()
            assert came.empty()
        assert all(resource["service.name"] == "mine" and resource["a"] == "b" for _, resource in spans)
        by_id = {span.span_id.hex(): span for span, _ in spans}
        assert {span.trace_id.hex() for span in by_id.values()} == {TRACE}
        (request,) = [span for span in by_id.values() if span.kind == Span.SPAN_KIND_SERVER]
        assert (request.name, request.parent_span_id.hex()) == ("InferRequest", SPAN)
        parents = sorted(
            (span.name, by_id[span.parent_span_id.hex()].name) for span in by_id.values() if span is not request
        )
        assert parents == [
            ("caller", "InferRequest"),
            ("compute", "caller"),
            ("compute", "echo"),
            ("compute", "echo"),
            ("echo", "caller"),
            ("echo", "caller"),
        ]
        (caller,) = [span for span in by_id.values() if span.name == "caller"]
        # The context that the model sees is that of its own span.
        assert f'context {{"traceparent":"00-{TRACE}-{caller.span_id.hex()}-01"}}' in server.log
        for span in by_id.values():
            times = [event.time_unix_nano for event in span.events]
            assert span.start_time_unix_nano == min(times)
            assert span.end_time_unix_nano == max(times)
            assert span.status.code == Status.STATUS_CODE_UNSET

    def test_a_span_of_the_sdk_in_a_model_is_part_of_the_clients_trace(self, model, serve):
        model("spans", SPANS)
        with collector() as (url, came):
            server = self.start(serve, url, level="TIMESTAMPS", rate=1000)
            server.infer("spans", {"IN": ONE}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            spans = [came.get(timeout=LIMIT_S)[0] for _ in range(3)]
            server.stop()
        (of_the_model,) = [span for span in spans if span.name == "spans"]
        assert f"own span of {TRACE} in {of_the_model.span_id.hex()}" in server.log

    def test_request_over_grpc(self, models, serve):
        """The client's trace goes on, whichever protocol it speaks."""
        tensor = tritonclient.grpc.InferInput("IN", [1], "INT64").set_data_from_numpy(ONE)
        with collector() as (url, came):
            server = self.start(serve, url, level="TIMESTAMPS")
            with closing(server.grpc()) as client:
                for _ in range(2):
                    client.infer("echo", [tensor], headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
                client.infer("echo", [tensor])
            server.stop()
            spans = [came.get(timeout=LIMIT_S)[0] for _ in range(6)]
            assert came.empty()
        assert {span.trace_id.hex() for span in spans} == {TRACE}
        assert [span.name for span in spans] == ["InferRequest", "echo", "compute"] * 2

    def test_failure(self, models, serve):
        """Spans of what failed say why, and nothing of the server's inside."""
        with collector() as (url, came):
            server = self.start(serve, url, level="TIMESTAMPS", rate=1)
            server.refusal("failing", {"IN": ONE})
            spans = [came.get(timeout=LIMIT_S)[0] for _ in range(3)]
            server.stop()
        assert [(span.name, span.status.code) for span in spans] == [
            ("InferRequest", Status.STATUS_CODE_ERROR),
            ("failing", Status.STATUS_CODE_ERROR),
            ("compute", Status.STATUS_CODE_UNSET),
        ]
        assert "no luck" in spans[0].status.message

    def test_sent_at_the_end(self, models, serve):
        """Spans that have not been sent are sent when the server stops."""
        with collector() as (url, came):
            hour = 3_600_000
            server = serve(
                *config(mode="opentelemetry", opentelemetry_url=url, opentelemetry_bsp_schedule_delay=hour),
                *config(level="TIMESTAMPS", rate=1),
            )
            server.infer("echo", {"IN": ONE})
            server.stop()
            assert came.qsize() == 3

    def test_nobody_there(self, models, serve, reserve_ports):
        """A collector that is not there costs the traces, no request, and not the server's end."""
        with reserve_ports(1) as (port,):
            server = self.start(serve, f"127.0.0.1:{port}/v1/traces", level="TIMESTAMPS", rate=1)
            server.infer("echo", {"IN": ONE})
            server.stop()
        assert "traces are lost, because the collector at" in server.log

    def test_off(self, models, serve):
        """Tracing that the operator has turned off stays off, and the model has no trace."""
        with collector() as (url, came):
            server = self.start(serve, url)
            server.infer("caller", {"IN": ONE}, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            server.stop()
            assert came.empty()
        assert "context None" in server.log
