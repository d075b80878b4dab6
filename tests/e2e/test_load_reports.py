# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Load reports (ORCA): on request, with each successful response of a model, over both protocols."""

import json
from contextlib import closing

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        name = args["model_name"]
        family = pb_utils.MetricFamily("nv_trt_llm_kv_cache_block_metrics", "Blocks.", pb_utils.MetricFamily.GAUGE)
        self.metrics = [
            family.Metric({"kv_cache_block_type": kind, "model": name, "version": args["model_version"]})
            for kind in ("tokens_per", "used", "max")
        ]
        for metric, value in zip(self.metrics, (64, 25, 100)):
            metric.set(value)
        self.family = family

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("no"))
            if each[0] < 0
            else pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)])
            for each in given
        ]
"""
DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            out = pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
            sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
HEADER = "endpoint-load-metrics"
ASK = {"endpoint-load-metrics-format": "json"}
JSON_BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1], "data": [1]}]})
GENERATE_BODY = json.dumps({"IN": 1})


@pytest.fixture
def server(model, serve):
    model("m", MODEL)
    model("plain", MODEL.replace("nv_trt_llm_kv_cache_block_metrics", "other"))
    model("decoupled", DECOUPLED, more="model_transaction_policy { decoupled: true }")
    return serve()


def report_of(text):
    """A report as one dictionary."""
    kind, _, rest = text.partition(" ")
    if kind == "JSON":
        document = json.loads(rest)
        return document | {f"named_metrics.{name}": value for name, value in document.pop("named_metrics", {}).items()}
    assert kind == "TEXT"
    return {name: float(value) for name, _, value in (each.partition("=") for each in rest.split(", "))}


def post(server, path, body, **headers):
    answer = server.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return answer, {name.lower(): value for name, value in answer.headers.items()}.get(HEADER)


@pytest.mark.parametrize("form", ["json", "text", "TEXT"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/m/infer", JSON_BODY),
        ("/v2/models/m/generate", GENERATE_BODY),
        ("/v2/models/m/generate_stream", GENERATE_BODY),
    ],
)
def test_http(server, path, body, form):
    """Each kind of request is answered as without the header, and a report says what the model says of itself."""
    plain, none = post(server, path, body)
    answer, text = post(server, path, body, endpoint_load_metrics_format=form)
    assert none is None
    assert (answer.status, answer.body) == (plain.status, plain.body)
    assert text.startswith(form.upper() + " ")
    report = report_of(text)
    assert report["named_metrics.kv_cache_utilization"] == 0.25
    assert report["named_metrics.max_token_capacity"] == 6400
    assert report["named_metrics.queued_requests"] == 0
    assert 0 <= report["application_utilization"] <= 1


def test_binary_data(server):
    """A response with binary data, whose head says more, has a report too."""
    document = json.loads(JSON_BODY) | {"parameters": {"binary_data_output": True}}
    del document["inputs"][0]["data"]
    document["inputs"][0]["parameters"] = {"binary_data_size": 8}
    head = json.dumps(document).encode()
    more = {"Inference-Header-Content-Length": str(len(head))}
    plain, none = post(server, "/v2/models/m/infer", head + np.array([7]).tobytes(), **more)
    answer, text = post(server, "/v2/models/m/infer", head + np.array([7]).tobytes(), **more, **ASK)
    assert none is None
    assert "named_metrics.kv_cache_utilization" in report_of(text)
    assert (answer.status, answer.body) == (200, plain.body)
    del answer.headers[HEADER]
    assert answer.headers.items() == plain.headers.items()


def test_other_models(server):
    """A model that reports nothing has a report without that, and so has a decoupled one."""
    for path, body in (("plain/infer", JSON_BODY), ("decoupled/generate_stream", GENERATE_BODY)):
        answer, text = post(server, f"/v2/models/{path}", body, **ASK)
        assert answer.status == 200
        assert {"application_utilization", "named_metrics.queued_requests"} <= report_of(text).keys()
        assert "named_metrics.kv_cache_utilization" not in report_of(text)


def test_rates(server, wait_until):
    """After a second there are rates, of answered and of failed requests."""
    failing = JSON_BODY.replace("[1]}", "[-1]}")

    def report():
        assert post(server, "/v2/models/plain/infer", failing)[0].status != 200
        return report_of(post(server, "/v2/models/plain/infer", JSON_BODY, **ASK)[1])

    wait_until(lambda: "rps_fractional" in report())
    found = report()
    assert found["rps_fractional"] > found["eps"] > 0


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v2/models/m/infer", {"endpoint-load-metrics-format": "xml"}),
        ("/v2/models/m", ASK),
        ("/v2/models/none/infer", ASK),
    ],
)
def test_no_report(server, path, headers):
    """An unknown format, and a response of no model, have none."""
    method = "POST" if path.endswith("infer") else "GET"
    answer = server.request(method, path, JSON_BODY if method == "POST" else None, headers)
    assert HEADER not in {name.lower() for name in answer.headers}


def message(model, value):
    request = service_pb2.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="IN", datatype="INT64", shape=[1])
    tensor.contents.int64_contents.append(value)
    return request


def trailing(call):
    return dict(call.trailing_metadata()).get(HEADER)


def test_grpc(server):
    """The trailers of a call have the report, if its metadata asks for it."""
    with closing(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        plain, call = stub.ModelInfer.with_call(message("m", 1))
        assert trailing(call) is None
        answer, call = stub.ModelInfer.with_call(message("m", 1), metadata=tuple(ASK.items()))
        assert answer == plain
        assert report_of(trailing(call))["named_metrics.kv_cache_utilization"] == 0.25
        call = stub.ModelStreamInfer(iter([message("m", 1), message("decoupled", 2)]), metadata=tuple(ASK.items()))
        assert len(list(call)) >= 2
        assert "named_metrics.queued_requests" in report_of(trailing(call))
        call = stub.ModelStreamInfer(iter([]), metadata=tuple(ASK.items()))
        assert list(call) == []
        assert trailing(call) is None


def test_restricted_statistics(model, serve):
    """Where `statistics` is restricted, a report is for those who may read them."""
    model("m", MODEL)
    server = serve("--http-restricted-api=statistics:key=1", "--grpc-restricted-protocol=statistics:key=1")
    assert post(server, "/v2/models/m/infer", JSON_BODY, **ASK)[1] is None
    assert post(server, "/v2/models/m/infer", JSON_BODY, **ASK, key="1")[1] is not None
    with closing(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = tuple(ASK.items())
        assert trailing(stub.ModelInfer.with_call(message("m", 1), metadata=metadata)[1]) is None
        opened = (*metadata, ("triton-grpc-protocol-key", "1"))
        assert trailing(stub.ModelInfer.with_call(message("m", 1), metadata=opened)[1]) is not None
