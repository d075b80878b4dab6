# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that meet in a queue: batches and refusals."""

import json
import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from functools import partial

import numpy as np
import tritonclient.grpc

# Answers each row with the number of rows, and of requests, that were executed together.
COUNTS = """
class TritonPythonModel:
    def execute(self, requests):
        shapes = [request.inputs()[0].shape() for request in requests]
        rows = sum(shape[0] for shape in shapes)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full((shape[0], 2), [rows, len(requests)]))])
                for shape in shapes]
"""
# Holds its first requests until a file is there.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.gate = args["model_repository"] + "/gate"

    def execute(self, requests):
        while not os.path.exists(self.gate):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
# No test waits for this long: a batch is executed because it is complete, not because of the time.
PATIENT = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }"


def infer_all(server, arrays):
    """The outputs of concurrent requests, in their order."""
    with ThreadPoolExecutor(len(arrays)) as clients:
        pending = [clients.submit(server.infer, "counts", {"IN": array}) for array in arrays]
        return [each.result().as_numpy("OUT") for each in pending]


def rows(count, width=2):
    """One request's rows."""
    return np.zeros((count, width), dtype=np.int64)


def test_one_batch(model, deploy):
    """Requests that wait together are executed as one batch, as soon as that has a preferred size."""
    model("counts", COUNTS, more=PATIENT)
    server = deploy()
    for output in infer_all(server, [rows(1)] * 8):
        assert output.tolist() == [[8, 8]]
    outputs = infer_all(server, [rows(3), rows(3), rows(2)])
    assert [output.tolist() for output in outputs] == [[[8, 3]] * 3, [[8, 3]] * 3, [[8, 3]] * 2]


def test_delay(model, deploy):
    """A request that waits alone is executed when its delay is over."""
    model("counts", COUNTS, more="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }")
    server = deploy()
    assert infer_all(server, [rows(3)])[0].tolist() == [[3, 1]] * 3


def test_shapes_are_not_mixed(model, deploy):
    """Requests of different shapes never share a batch, however long they waited together."""
    model("counts", COUNTS, more="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 200000 }")
    server = deploy()
    for output in infer_all(server, [rows(1, 2), rows(1, 3), rows(1, 4), rows(1, 5)]):
        assert output.tolist() == [[1, 1]]


def test_without_dynamic_batching(model, deploy):
    """Without dynamic batching every request is executed alone, for every max_batch_size."""
    model("counts", COUNTS, more="max_batch_size: 8")
    server = deploy()
    for output in infer_all(server, [rows(2)] * 8):
        assert output.tolist() == [[2, 1]] * 2


def test_full_queue(model, deploy):
    """Requests beyond max_queue_size are refused at once; admitted ones are answered."""
    more = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    folder = model("gated", GATED, more=more)
    server = deploy()
    count, admitted_max = 12, 2 + 2  # those that wait, and those that are with the instance
    with ThreadPoolExecutor(count) as clients:
        pending = [clients.submit(server.request, *infer_gated(number)) for number in range(count)]
        finished = as_completed(pending)
        refused = [next(finished).result() for _ in range(count - admitted_max)]
        for answer in refused:
            assert answer.status == 503
            assert b"] Exceeds maximum queue size" in answer.body
        (folder / "gate").touch()
        admitted = [each.result() for each in finished]
    assert len(admitted) == admitted_max
    assert sum(answer.status == 200 for answer in admitted) >= admitted_max - 1


def infer_gated(number, model="gated", **parameters):
    """The arguments of a request."""
    tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT64", "data": [number]}
    body = json.dumps({"id": str(number), "parameters": parameters, "inputs": [tensor]})
    return "POST", f"/v2/models/{model}/infer", body


# Notes the numbers that it executes in a file, and holds each until the gate is there.
NOTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        with open(self.folder + "/executed", "a") as file:
            for request in requests:
                print(request.inputs()[0].as_numpy()[0][0], file=file)
        while not os.path.exists(self.folder + "/gate"):
            time.sleep(0.001)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""


def has_pending(server, count):
    """Whether so many requests wait."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return f'nv_inference_pending_request_count{{model="noting",version="1"}} {count}\n' in page


def text_of(path):
    return path.read_text() if path.exists() else ""


def infer_grpc(server, array, **options):
    with closing(server.grpc()) as client:
        tensor = tritonclient.grpc.InferInput("IN", list(array.shape), "INT64")
        tensor.set_data_from_numpy(array)
        return client.infer("noting", [tensor], **options)


def test_priority(model, serve, wait_until):
    """Of the requests that wait, those of the highest priority come first, over HTTP and gRPC."""
    more = "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
    folder = model("noting", NOTING, more=more)
    server = serve()
    executed = folder / "executed"
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(server.request, *infer_gated(0, "noting"))]
        wait_until(lambda: text_of(executed) == "0\n")
        for waiting, (number, priority) in enumerate([(1, 3), (2, 0), (3, 1), (4, 7), (5, 1)]):
            answers.append(clients.submit(server.request, *infer_gated(number, "noting", priority=priority)))
            wait_until(partial(has_pending, server, waiting + 1))
        answers.append(clients.submit(infer_grpc, server, np.full((1, 1), 6), priority=1))
        wait_until(partial(has_pending, server, 6))
        (folder / "gate").touch()
        for each in answers:
            each.result()
    assert executed.read_text().split() == ["0", "3", "5", "6", "2", "4", "1"]


def level_samples(server):
    """The samples of levels, by family and level."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    found = re.findall(r'^(pyruntime_level_\w+){level="(\w+)",model="noting",version="1"} (\S+)$', page, re.MULTILINE)
    return {(family.removeprefix("pyruntime_level_"), level): float(value) for family, level, value in found}


def test_metrics_of_levels(model, serve, wait_until):
    """Requests that wait, are taken, refused or too late count by priority level, for models that have levels."""
    policies = """priority_queue_policy { key: 2 value { max_queue_size: 1 } }
      priority_queue_policy { key: 3 value { allow_timeout_override: true default_timeout_microseconds: 600000000 } }"""
    more = f"max_batch_size: 1 dynamic_batching {{ priority_levels: 3 default_priority_level: 2 {policies} }}"
    folder = model("noting", NOTING, more=more)
    model("plain", NOTING, more="max_batch_size: 1 dynamic_batching { }")
    server = serve()
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert not re.search(r'pyruntime_level_\w+{[^}]*model="plain"', page)
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.request, *infer_gated(0, "noting", priority=1))]
        wait_until(lambda: text_of(folder / "executed") == "0\n")
        answers.append(clients.submit(server.request, *infer_gated(1, "noting", priority=1)))
        wait_until(lambda: level_samples(server)["queued_requests", "1"] == 1)
        answers.append(clients.submit(server.request, *infer_gated(2, "noting")))
        wait_until(lambda: level_samples(server)["queued_requests", "2"] == 1)
        assert server.request(*infer_gated(3, "noting")).status == 503
        assert server.request(*infer_gated(4, "noting", priority=3, timeout=1000)).status == 503
        (folder / "gate").touch()
        assert [each.result().status for each in answers] == [200, 200, 200]
    found = level_samples(server)
    assert found["queue_seconds_total", "1"] > 0
    assert found["queue_seconds_total", "3"] == 0
    assert {key: value for key, value in found.items() if value and key[0] != "queue_seconds_total"} == {
        ("dequeued_requests_total", "1"): 2,
        ("dequeued_requests_total", "2"): 1,
        ("rejected_requests_total", "2"): 1,
        ("timed_out_requests_total", "3"): 1,
    }


def test_timeout(model, serve, wait_until):
    """A request whose time is over is answered although its model is busy, with Triton's words, and counted."""
    policy = "default_timeout_microseconds: 600000000 allow_timeout_override: true"
    folder = model(
        "noting", NOTING, more=f"max_batch_size: 1 dynamic_batching {{ default_queue_policy {{ {policy} }} }}"
    )
    server = serve()
    executed = folder / "executed"
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.request, *infer_gated(0, "noting"))
        wait_until(lambda: text_of(executed) == "0\n")
        answer = server.request(*infer_gated(1, "noting", timeout=1000))
        assert (answer.status, json.loads(answer.body)) == (503, {"error": "Request timeout expired"})
        assert not (folder / "gate").exists()
        (folder / "gate").touch()
        assert first.result().status == 200
    assert executed.read_text() == "0\n"
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    assert 'nv_inference_request_failure{model="noting",reason="REJECTED",version="1"} 1\n' in page
