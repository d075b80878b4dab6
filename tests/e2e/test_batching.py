# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that meet in a queue: batches and refusals."""

from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

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


def test_one_batch(model, serve):
    """Requests that wait together are executed as one batch, as soon as that has a preferred size."""
    model("counts", COUNTS, more=PATIENT)
    server = serve()
    for output in infer_all(server, [rows(1)] * 8):
        assert output.tolist() == [[8, 8]]
    outputs = infer_all(server, [rows(3), rows(3), rows(2)])
    assert [output.tolist() for output in outputs] == [[[8, 3]] * 3, [[8, 3]] * 3, [[8, 3]] * 2]


def test_delay(model, serve):
    """A request that waits alone is executed when its delay is over."""
    model("counts", COUNTS, more="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1000 }")
    server = serve()
    assert infer_all(server, [rows(3)])[0].tolist() == [[3, 1]] * 3


def test_shapes_are_not_mixed(model, serve):
    """Requests of different shapes never share a batch, however long they waited together."""
    model("counts", COUNTS, more="max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 200000 }")
    server = serve()
    for output in infer_all(server, [rows(1, 2), rows(1, 3), rows(1, 4), rows(1, 5)]):
        assert output.tolist() == [[1, 1]]


def test_without_dynamic_batching(model, serve):
    """Without dynamic batching every request is executed alone, for every max_batch_size."""
    model("counts", COUNTS, more="max_batch_size: 8")
    server = serve()
    for output in infer_all(server, [rows(2)] * 8):
        assert output.tolist() == [[2, 1]] * 2


def test_full_queue(model, serve):
    """Requests beyond max_queue_size are refused at once; admitted ones are answered."""
    more = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
    folder = model("gated", GATED, more=more)
    server = serve()
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


def infer_gated(number):
    """The arguments of a request."""
    body = f'{{"id":"{number}","inputs":[{{"name":"IN","shape":[1,1],"datatype":"INT64","data":[{number}]}}]}}'
    return "POST", "/v2/models/gated/infer", body
