# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The log, metrics, statistics and traces of native models."""

import json
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .harness.models import parameters

INTEGERS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
BATCHED = """
backend: "gather"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
METRICS = """
backend: "metrics"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP64 dims: [ 2 ] } ]
"""
REPEAT = 'backend: "repeat"\n' + (Path(__file__).parent.parent / "native/repeat.pbtxt").read_text()
# A gauge and a counter of the names that the native backend takes, or would take, for something else.
PYTHON = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        for name, kind in (("of_test_total", "COUNTER"), ("of_test_size_sum", "GAUGE")):
            family = pb_utils.MetricFamily(name, "Of a model.", getattr(pb_utils.MetricFamily, kind))
            self.kept.append((family, family.Metric({"model": "python"})))

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backends are."""
    names = ("identity", "gather", "calls", "lifecycle", "metrics", "repeat", "misuse")
    return f"--backend-directory={install_backends(*names)}"


# The log.


def observe(server, value=0.5):
    """Have the backend `metrics` count a value, which it logs as a verbose line."""
    server.infer("metrics", {"INPUT0": np.array([value], np.float32)})


def test_log_settings(serve, model, backends):
    """The log settings apply to native code: those of the command line, and those that clients change."""
    folder = model("metrics", None, METRICS, parameters(LOG="first"))
    server = serve(backends, "--model-control-mode=explicit", "--load-model=metrics", "--log-warning=false")

    def lines(text):
        return [line for line in server.log.splitlines() if line.endswith(text)]

    assert sorted(line[0] for line in lines("first")) == ["E", "I"]
    assert all(re.match(r"[EI]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ common\.h:\d+\] first$", line) for line in lines("first"))
    observe(server, 0.25)
    with closing(server.client()) as client:
        client.update_log_settings({"log_info": False, "log_warning": True, "log_verbose_level": 1})
        observe(server, 0.5)
        (folder / "config.pbtxt").write_text(METRICS + parameters(LOG="second"))
        client.load_model("metrics")
        client.update_log_settings({"log_error": False, "log_verbose_level": 0, "log_format": "ISO8601"})
        observe(server, 0.75)
        (folder / "config.pbtxt").write_text(METRICS + parameters(LOG="third"))
        client.load_model("metrics")
    assert lines("element 0.250000") == []
    assert len(lines("element 0.500000")) == 1
    assert lines("element 0.750000") == []
    assert sorted(line[0] for line in lines("second")) == ["E", "V", "W"]
    assert [re.match(r"\S+Z (.) \d+ common\.h:\d+\] ", line)[1] for line in lines("third")] == ["W"]


# Metrics.


def page(server):
    """The families of the page, which a strict reader reads."""
    text = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    heads = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(set(heads)) == len(heads)
    samples = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(set(samples)) == len(samples)
    return text, {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_of_python_and_native_models(serve, model, backends):
    """Native and Python models share families; one that conflicts is left out, and the page stays valid."""
    model("python", PYTHON, 'backend: "python"' + INTEGERS)
    model("native", None, METRICS, parameters(METRIC="of_test"))
    server = serve(backends)
    server.infer("native", {"INPUT0": np.array([1, 2], np.float32)})
    text, families = page(server)
    found = {sample.labels["model"]: sample.value for sample in families["of_test"].samples}
    assert found == {"python": 0, "native": 2}
    assert families["of_test_last"].samples[0].value == 2
    assert families["of_test_size_sum"].type == "gauge"
    assert "# metric family 'of_test_size' of a native backend is left out" in text


def test_metrics_with_names_of_the_server(serve, model, backends):
    """The server's own families are its own."""
    model("native", None, METRICS, parameters(METRIC="pyruntime_stub_restarts"))
    server = serve(backends)
    text, families = page(server)
    assert "# metric family 'pyruntime_stub_restarts_total' of a native backend is left out" in text
    assert "pyruntime_stub_restarts_last" in families


# Statistics.


def statistics(server, model):
    with closing(server.client()) as client:
        return client.get_inference_statistics(model)["model_stats"][0]


def test_statistics(serve, model, backends, wait_until):
    """Counts and durations are those that the backend reports, on the endpoint and on the page."""
    model("gather", None, BATCHED)
    model("fails", None, 'backend: "misuse"' + INTEGERS, parameters(AT="execute", DO="error"))
    server = serve(backends)
    for rows in (1, 2, 2):
        server.infer("gather", {"INPUT0": np.zeros((rows, 3), np.float32)})
    wait_until(lambda: statistics(server, "gather")["execution_count"] == 3)
    found = statistics(server, "gather")
    stats = found["inference_stats"]
    assert (found["inference_count"], stats["success"]["count"]) == (5, 3)
    assert [(each["batch_size"], each["compute_infer"]["count"]) for each in found["batch_stats"]] == [(1, 1), (2, 2)]
    parts = [stats[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output")]
    assert all(ns > 0 for ns in parts)
    assert sum(parts) <= stats["success"]["ns"]
    assert server.refusal("fails", {"INPUT0": np.zeros(1, np.int32)}) == (503, "failed at execute")
    wait_until(lambda: statistics(server, "fails")["inference_stats"]["fail"]["count"] == 1)
    assert statistics(server, "fails")["inference_stats"]["success"]["count"] == 0
    text, _ = page(server)
    assert 'nv_inference_request_success{model="gather",version="1"} 3' in text
    assert 'nv_inference_count{model="gather",version="1"} 5' in text
    assert re.search(r'nv_inference_request_failure\{model="fails",reason="BACKEND",version="1"\} 1', text)


def test_statistics_of_responses(serve, model, backends, wait_until):
    """Models with many responses have statistics by the number of the response."""
    model("repeat", None, REPEAT)
    server = serve(backends)
    for count in (1, 3):
        server.stream("repeat", IN=[1] * count, DELAY=[0] * count, WAIT=[0])
    # A request is counted last of all that belongs to it.
    wait_until(lambda: statistics(server, "repeat")["inference_stats"]["success"]["count"] == 2)
    found = statistics(server, "repeat")["response_stats"]
    counts = {key: (each["success"]["count"], each["empty_response"]["count"]) for key, each in found.items()}
    assert counts == {"0": (2, 0), "1": (1, 1), "2": (1, 0), "3": (0, 1)}


def test_memory_usage(serve, model, backends):
    """Memory that a backend reports for the model and for each instance is added up, and removed with them."""
    model("lifecycle", None, 'backend: "lifecycle"' + INTEGERS, "instance_group { count: 2 kind: KIND_CPU }")
    server = serve(backends)
    usage = [
        {"type": "CPU_PINNED", "id": 0, "byte_size": 3 << 40},
        {"type": "GPU", "id": 3, "byte_size": 3 * 4096},
    ]
    assert statistics(server, "lifecycle")["memory_usage"] == usage
    with closing(server.grpc()) as client:
        (found,) = client.get_inference_statistics("lifecycle").model_stats
        assert [{"type": each.type, "id": each.id, "byte_size": each.byte_size} for each in found.memory_usage] == usage


# Traces.

OF_MODEL = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "INFER_RESPONSE_COMPLETE",
    "COMPUTE_END",
    "REQUEST_END",
]


def traces(path):
    """The traces of a file, by model: their heads, and the names of their timestamps in the order of time."""
    heads, times = {}, {}
    for record in json.loads(path.read_bytes()):
        if "model_name" in record:
            heads[record["id"]] = record
        for stamp in record.get("timestamps", ()):
            times.setdefault(record["id"], []).append((stamp["ns"], stamp["name"]))
    return [(head, [name for _, name in sorted(times[number])]) for number, head in heads.items()]


def test_traces(serve, model, backends, tmp_path_factory):
    """The times that a backend reports are in the trace of its request."""
    model("gather", None, BATCHED)
    model("identity", None, 'backend: "identity"' + INTEGERS)
    model("calls", None, 'backend: "calls"' + INTEGERS, parameters(MODEL="identity"))
    model("repeat", None, REPEAT)
    path = tmp_path_factory.mktemp("traces") / "traces.json"
    server = serve(
        backends, f"--trace-config=triton,file={path}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"
    )
    server.infer("gather", {"INPUT0": np.zeros((2, 3), np.float32)})
    assert server.infer("calls", {"INPUT0": np.array([7], np.int32)}).as_numpy("OUTPUT0").tolist() == [7]
    assert len(server.stream("repeat", IN=[1, 2], DELAY=[0, 0], WAIT=[0])) == 2
    server.stop()
    found = traces(path)
    for head, names in found:
        of_model = [name for name in names if "HTTP" not in name]
        assert sorted(set(of_model)) == sorted(OF_MODEL), head
        if head["model_name"] != "repeat":  # whose responses come whenever they like
            assert [name for name in of_model if name != "INFER_RESPONSE_COMPLETE"] == [
                name for name in OF_MODEL if name != "INFER_RESPONSE_COMPLETE"
            ]
    # A called model is traced if the caller passes its trace, which this backend does not.
    assert sorted(head["model_name"] for head, _ in found) == ["calls", "gather", "repeat"]
