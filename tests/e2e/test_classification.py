# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Classification over HTTP, by the clients that people have: labels, batches, and outputs without classes."""

import asyncio
from contextlib import closing

import numpy as np
import pytest
import tritonclient.http.aio
from tritonclient.http import InferRequestedOutput
from tritonclient.utils import InferenceServerException

from .harness.server import to_input

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(tensor.name().replace("IN", "OUT"), tensor.as_numpy()) for tensor in request.inputs()]
            )
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
input [
  { name: "IN_FP32" data_type: TYPE_FP32 dims: [ 3 ] optional: true },
  { name: "IN_BYTES" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "OUT_FP32" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" },
  { name: "OUT_BYTES" data_type: TYPE_STRING dims: [ 1 ] }
]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("classification")
    for name, more in (("row", ""), ("batch", "max_batch_size: 8")):
        folder = write_model(repository, name, ECHO, CONFIG, more)
        (folder / "labels.txt").write_text("cat\ndög\n\nunused\n")
    with serving(repository) as running:
        yield running


def wanted(binary, name="OUT_FP32", count=2):
    return [InferRequestedOutput(name, binary_data=binary, class_count=count)]


def text(array):
    return np.vectorize(lambda each: each.decode() if isinstance(each, bytes) else each)(array).tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_of_a_model_that_does_not_batch(server, binary):
    """The largest elements, their indexes and their labels."""
    with closing(server.client()) as client:
        inputs = [to_input("IN_FP32", np.array([0.5, 2, 1], np.float32))]
        result = client.infer("row", inputs, outputs=wanted(binary))
        assert text(result.as_numpy("OUT_FP32")) == ["2.000000:1:dög", "1.000000:2"]
        assert result.get_output("OUT_FP32")["datatype"] == "BYTES"
        result = client.infer("row", inputs, outputs=wanted(binary, count=99))
        assert text(result.as_numpy("OUT_FP32")) == ["2.000000:1:dög", "1.000000:2", "0.500000:0:cat"]


@pytest.mark.parametrize("algorithm", [None, "gzip"])
def test_of_a_batch(server, algorithm):
    """Each row has its own, compressed or not."""
    with closing(server.client()) as client:
        inputs = [to_input("IN_FP32", np.array([[1, 2, 3], [3, 2, 1]], np.float32))]
        result = client.infer("batch", inputs, outputs=wanted(True), response_compression_algorithm=algorithm)
        first, second = text(result.as_numpy("OUT_FP32"))
        assert first == ["3.000000:2", "2.000000:1:dög"]
        assert second == ["3.000000:0:cat", "2.000000:1:dög"]


def test_asyncio_client(server):
    """It asks in the same way."""

    async def main():
        async with tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            inputs = [to_input("IN_FP32", np.array([0.5, 2, 1], np.float32))]
            result = await client.infer("row", inputs, outputs=wanted(True, count=1))
            assert text(result.as_numpy("OUT_FP32")) == ["2.000000:1:dög"]

    asyncio.run(main())


def test_datatype_without_classes(server):
    """An error in Triton's own words; the server goes on."""
    with closing(server.client()) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("row", [to_input("IN_BYTES", np.array(["x"], object))], outputs=wanted(True, "OUT_BYTES"))
        assert (caught.value.status(), caught.value.message()) == (
            "400", "class result not available for output due to unsupported type 'BYTES'",
        )  # fmt: skip
        result = client.infer("row", [to_input("IN_FP32", np.zeros(3, np.float32))])
        assert result.as_numpy("OUT_FP32").tolist() == [0, 0, 0]


def test_labels_that_are_missing(model, serve):
    """The model does not load, and the log says why."""
    folder = model("row", ECHO, CONFIG)
    server = serve(ready=False)
    assert server.wait_exit() == 1
    assert f"failed to open text file for read {folder}/labels.txt: No such file or directory" in server.log
