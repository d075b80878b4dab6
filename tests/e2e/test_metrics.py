# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server's own metrics and statistics, read off the metrics port as Prometheus reads them."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

# Answers with its input; a first number below 0 says otherwise. It waits while there is a file `wait` beside it.
MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        self.wait = os.path.join(args["model_repository"], "wait")

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "IN")
            first = given.as_numpy().flat[0]
            while os.path.exists(self.wait):
                time.sleep(0.001)
            if first == -1:
                raise ValueError("raised")
            if first == -2:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("an error")))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy())]))
        return responses
"""
# A response for each 0 and an error for each 1, and then the end.
DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
                if number == 0:
                    out = pb_utils.Tensor("OUT", np.array([number], dtype=np.int64))
                    sender.send(pb_utils.InferenceResponse([out]))
                else:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("an error")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        given = pb_utils.get_input_tensor_by_name(requests[0], "IN")
        called = pb_utils.InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=[given]).exec()
        if called.has_error():
            return [pb_utils.InferenceResponse(error=called.error())]
        return [pb_utils.InferenceResponse(called.output_tensors())]
"""
IS_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
ONE = {"IN": np.array([1])}

DURATIONS = {
    f"nv_inference_{name}_duration_us"
    for name in ("request", "queue", "compute_input", "compute_infer", "compute_output")
}
COUNTERS = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
}
GAUGES = {
    "nv_inference_pending_request_count",
    "nv_model_load_duration_secs",
    "nv_pinned_memory_pool_total_bytes",
    "nv_pinned_memory_pool_used_bytes",
}
CPU = {"nv_cpu_utilization", "nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"}
SUMMARIES = {name.replace("_duration_", "_summary_") for name in DURATIONS}
HISTOGRAM = "nv_inference_first_response_histogram_ms"
GPU = {name for name in ("nv_gpu_utilization", "nv_energy_consumption")}
CACHE = {"nv_cache_num_hits_per_model", "nv_cache_hit_summary_per_model"}


def page(server):
    answer = server.request("GET", "/metrics", port=server.metrics_port)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    return answer.body.decode()


def families(server):
    """{name: (kind, description)}, in the page's own words."""
    text = page(server)
    found = {family.name: family for family in text_string_to_metric_families(text)}
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert len(found) == len(kinds) == text.count("# TYPE")
    return {name: (kind, found[name.removesuffix("_total")].documentation) for name, kind in kinds.items()}


def samples(server):
    """{"name{label="text",...}": value}, labels as they stand on the page, and as the parser takes them."""
    text = page(server)
    parsed = [sample.value for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert len(parsed) == len(found)
    return found


def statistics(server, model):
    (found,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
    return found


def failures(found, model):
    """{reason: count}."""
    start = f'nv_inference_request_failure{{model="{model}",reason="'
    return {name[len(start) :].split('"')[0]: value for name, value in found.items() if name.startswith(start)}


def test_families(model, serve):
    """All of Triton's that are there without asking: kinds and descriptions are Triton's."""
    model("m", MODEL)
    model("d", DECOUPLED, more=IS_DECOUPLED)
    server = serve("--allow-gpu-metrics=false")
    found = {name: each for name, each in families(server).items() if name.startswith("nv_")}
    assert set(found) == COUNTERS | DURATIONS | GAUGES | CPU
    assert {name for name, (kind, _) in found.items() if kind == "counter"} == COUNTERS | DURATIONS
    assert {name for name, (kind, _) in found.items() if kind == "gauge"} == GAUGES | CPU
    assert found["nv_inference_count"][1] == "Number of inferences performed (does not include cached requests)"
    assert found["nv_inference_pending_request_count"][1] == (
        "Instantaneous number of pending requests awaiting execution per-model."
    )
    assert all(description for _, description in found.values())


def test_requests(model, serve):
    """The metrics match the requests, and agree with the statistics."""
    model("m", MODEL, more="max_batch_size: 4")
    server = serve()
    assert failures(samples(server), "m") == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
    for rows in (1, 3):
        server.infer("m", {"IN": np.ones((rows, 1), dtype=np.int64)})
    for number in (-1, -2):
        server.refusal("m", {"IN": np.array([[number]])})
    server.refusal("m", {"IN": np.ones((5, 1), dtype=np.int64)})
    found = samples(server)
    labels = '{model="m",version="1"}'
    assert found[f"nv_inference_request_success{labels}"] == 2
    assert found[f"nv_inference_count{labels}"] == 4
    assert found[f"nv_inference_exec_count{labels}"] == 4
    assert failures(found, "m") == {"REJECTED": 0, "CANCELED": 0, "BACKEND": 2, "OTHER": 1}
    assert found[f"nv_model_load_duration_secs{labels}"] > 0
    times = statistics(server, "m")["inference_stats"]
    for name, key in (("request", "success"), ("queue", "queue"), ("compute_infer", "compute_infer")):
        assert found[f"nv_inference_{name}_duration_us{labels}"] == times[key]["ns"] // 1000
    assert times["fail"]["count"] == 3


def test_a_full_queue_and_a_client_that_leaves(model, serve, wait_until):
    """A waiting request is pending, a refused one REJECTED, an abandoned one CANCELED."""
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"
    folder = model("m", MODEL, more="max_batch_size: 4\n" + policy)
    (folder / "wait").touch()
    server = serve()
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}).encode()
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    pending = 'nv_inference_pending_request_count{model="m",version="1"}'
    queued = 'pyruntime_queued_requests{model="m",version="1"}'
    with server.connect() as first, server.connect() as second:
        first.sendall(head + body)
        wait_until(lambda: samples(server)["pyruntime_requests_in_flight"] == 2)  # the scrape is one
        assert samples(server)[pending] == 0
        second.sendall(head + body)
        wait_until(lambda: samples(server)[pending] == 1)
        found = samples(server)
        assert (found[queued], found['pyruntime_connections{protocol="http"}']) == (1, 2)
        assert server.refusal("m", {"IN": np.array([[1]])})[0] == 503
        second.close()
        wait_until(lambda: failures(samples(server), "m")["CANCELED"] == 1)
        (folder / "wait").unlink()
        assert first.recv(15) == b"HTTP/1.1 200 OK"
    found = samples(server)
    assert failures(found, "m") == {"REJECTED": 1, "CANCELED": 1, "BACKEND": 0, "OTHER": 0}
    assert (found[pending], found[queued]) == (0, 0)


def test_posted_ahead(model, serve, wait_until):
    """A request that the instance has been given is pending until the one before it is done."""
    folder = model("m", MODEL)
    (folder / "wait").touch()
    server = serve()
    pending = 'nv_inference_pending_request_count{model="m",version="1"}'
    with ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(server.infer, "m", ONE) for _ in range(2)]
        wait_until(lambda: samples(server)[pending] == 1)
        assert samples(server)['pyruntime_queued_requests{model="m",version="1"}'] == 0
        (folder / "wait").unlink()
        assert [each.result().as_numpy("OUT").tolist() for each in asked] == [[1], [1]]
    assert samples(server)[pending] == 0


def test_calls(model, serve):
    """A call of a model is a request like any other: success and failure, of both."""
    model("m", MODEL)
    model("caller", CALLER)
    server = serve()
    server.infer("caller", ONE)
    server.refusal("caller", {"IN": np.array([-2])})
    found = samples(server)
    for name in ("m", "caller"):
        assert found[f'nv_inference_request_success{{model="{name}",version="1"}}'] == 1
        assert failures(found, name)["BACKEND"] == 1


def test_decoupled(model, serve):
    """Responses are counted by their place, and first responses by their time, where that is asked for."""
    buckets = (
        "model_metrics { metric_control { metric_identifier { family: '%s' } histogram_options { buckets: %s } } }"
    )
    model("m", MODEL)
    model("d", DECOUPLED, more=IS_DECOUPLED + buckets % (HISTOGRAM, "[ 0.000001, 1000000 ]"))
    model("usual", DECOUPLED, more=IS_DECOUPLED)
    server = serve("--metrics-config=histogram_latencies=true")
    for numbers in ([0, 0], [0, 1], []):
        server.stream("d", IN=numbers)
    server.infer("m", ONE)
    responses = statistics(server, "d")["response_stats"]
    counts = {
        index: {name: each["count"] for name, each in row.items() if each["count"]} for index, row in responses.items()
    }
    assert counts == {
        "0": {"compute_infer": 3, "compute_output": 2, "success": 2, "empty_response": 1},
        "1": {"compute_infer": 2, "compute_output": 2, "success": 1, "fail": 1},
        "2": {"compute_infer": 2, "empty_response": 2},
    }
    assert set(responses["0"]) == {"compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"}
    assert all(responses["0"][name]["ns"] > 0 for name in counts["0"])
    assert statistics(server, "m")["response_stats"] == {}
    found = samples(server)
    assert families(server)[HISTOGRAM][0] == "histogram"
    bounds = {name: value for name, value in found.items() if name.startswith(f'{HISTOGRAM}_bucket{{model="d"')}
    assert [name.rpartition('le="')[2] for name in bounds] == ['1e-06"}', '1000000"}', '+Inf"}']
    assert list(bounds.values()) == [0, 2, 2]
    assert found[f'{HISTOGRAM}_bucket{{model="usual",version="1",le="5000"}}'] == 0
    assert found[f'{HISTOGRAM}_count{{model="d",version="1"}}'] == 2
    assert found[f'{HISTOGRAM}_count{{model="m",version="1"}}'] == 1


def test_a_decoupled_model_has_all_times_in_its_statistics_over_both_protocols(model, deploy):
    model("d", DECOUPLED, more=IS_DECOUPLED)
    server = deploy()
    server.stream("d", IN=[0, 0])
    times = statistics(server, "d")["inference_stats"]
    with closing(server.grpc()) as client:
        (over_grpc,) = client.get_inference_statistics("d", as_json=True)["model_stats"]
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert times[name]["count"] == 1
        assert times[name]["ns"] > 0
        assert over_grpc["inference_stats"][name] == {key: str(value) for key, value in times[name].items()}


def test_metrics_config(model, serve):
    """Summaries instead of sums, with quantiles of one's own; each request is in them."""
    model("m", MODEL)
    options = ("counter_latencies=false", "summary_latencies=true", "summary_quantiles=0.5:0.05,1:0")
    server = serve(*(f"--metrics-config={option}" for option in options))
    for _ in range(3):
        server.infer("m", ONE)
    found = families(server)
    assert {name for name, (kind, _) in found.items() if kind == "summary"} == SUMMARIES
    assert not DURATIONS & set(found)
    values = samples(server)
    for name in SUMMARIES:
        assert values[f'{name}_count{{model="m",version="1"}}'] == 3
        median, most = (values[f'{name}{{model="m",version="1",quantile="{rank}"}}'] for rank in ("0.5", "1"))
        assert 0 <= median <= most
        assert most <= 1.01 * values[f'{name}_sum{{model="m",version="1"}}']
    assert values['nv_inference_request_summary_us{model="m",version="1",quantile="0.5"}'] > 0


@pytest.mark.parametrize("option", ["foo=1", "summary_quantiles=2:0.1", "counter_latencies"])
def test_metrics_config_that_is_none(model, serve, option):
    """A server that was told nonsense does not start."""
    model("m", MODEL)
    server = serve(f"--metrics-config={option}", ready=False)
    assert server.wait_exit() != 0
    assert "metrics-config" in server.log or "summary_quantiles" in server.log


def test_metric_tags(model, serve):
    """Labels that the configuration adds; an invalid one is left out, with a warning."""
    tags = 'metric_tags { key: "team" value: "a\\"b" } metric_tags { key: "a-b" value: "c" }'
    model("m", MODEL, more=tags)
    server = serve()
    found = samples(server)
    assert found['nv_inference_count{_team="a\\"b",model="m",version="1"}'] == 0
    assert "a-b" not in "".join(found)
    assert "model 'm' asks for the metric tag 'a-b', which cannot be a label and is left out" in server.log


@pytest.mark.parametrize(
    ("option", "missing"),
    [
        ("--allow-cpu-metrics=true", set()),
        ("--allow-cpu-metrics=false", CPU),
    ],
)
def test_cpu(serve, wait_until, option, missing):
    """Processors and memory, unless they are switched off."""
    server = serve("--metrics-interval-ms=20", option)
    found = wait_until(lambda: set(families(server)))
    if not missing:
        wait_until(lambda: set(families(server)) >= CPU)
        values = samples(server)
        assert 0 <= values["nv_cpu_utilization"] <= 1
        total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
        assert values["nv_cpu_memory_total_bytes"] == int(total.split()[1]) << 10
        assert 0 < values["nv_cpu_memory_used_bytes"] < values["nv_cpu_memory_total_bytes"]
    assert not found & missing


def test_what_there_is_none_of(model, serve):
    """Without a cache there are no families of it; and no pool of pinned memory."""
    model("m", MODEL)
    server = serve("--metrics-config=summary_latencies=true", "--allow-gpu-metrics=false")
    found = samples(server)
    assert found["nv_pinned_memory_pool_total_bytes"] == found["nv_pinned_memory_pool_used_bytes"] == 0
    assert not (CACHE | GPU) & set(families(server))
    assert not any("gpu_uuid" in name or "namespace" in name for name in found)


def test_unloading(model, serve, write_model, tmp_path):
    """A model that is unloaded has no metrics, and begins at 0 when it is loaded again."""
    model("m", MODEL)
    control = """
    class TritonPythonModel:
        def execute(self, requests):
            number = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0]
            (pb_utils.load_model if number else pb_utils.unload_model)("m")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number]))])]
    """
    model("control", control)
    server = serve("--model-control-mode=explicit", "--load-model=*")
    success = 'nv_inference_request_success{model="m",version="1"}'
    server.infer("m", ONE)
    assert samples(server)[success] == 1
    server.infer("control", {"IN": np.array([0])})
    assert not any('model="m"' in name for name in samples(server))
    server.infer("control", {"IN": np.array([1])})
    assert samples(server)[success] == 0


def test_of_our_own(model, serve, wait_until):
    """Restarts, shared memory, connections, requests, and the event loop."""
    model("m", MODEL)
    server = serve()
    restarts = 'pyruntime_stub_restarts_total{instance="m_0",model="m",version="1"}'
    (name,) = [name for name in samples(server) if name.startswith("pyruntime_stub_restarts_total")]
    instance = name.partition('instance="')[2].partition('"')[0]
    assert name == restarts.replace("m_0", instance)
    before = samples(server)
    assert before[name] == 0
    os.kill(server.stub(instance).pid, signal.SIGKILL)
    wait_until(lambda: samples(server)[name] == 1)
    wait_until(server.is_ready)
    large = np.zeros(1 << 20, dtype=np.int64)
    large[0] = 1
    server.infer("m", {"IN": large})
    found = samples(server)
    for region in ("requests", "responses"):
        size = f'pyruntime_shared_memory_bytes{{model="m",region="{region}",version="1"}}'
        assert before[size] > 0
        assert found[size] >= before[size] + (4 << 20)
    assert found['pyruntime_connections{protocol="metrics"}'] == 1
    assert found["pyruntime_requests_in_flight"] == 1
    assert found["pyruntime_pending_bytes"] == 0
    wait_until(lambda: samples(server)["pyruntime_event_loop_lag_seconds_count"] > 0)
    kinds = {name: kind for name, (kind, _) in families(server).items() if name.startswith("pyruntime_")}
    assert kinds == {
        "pyruntime_stub_restarts_total": "counter",
        "pyruntime_instances": "gauge",
        "pyruntime_queued_requests": "gauge",
        "pyruntime_shared_memory_bytes": "gauge",
        "pyruntime_connections": "gauge",
        "pyruntime_requests_in_flight": "gauge",
        "pyruntime_pending_bytes": "gauge",
        "pyruntime_event_loop_lag_seconds": "histogram",
    }
