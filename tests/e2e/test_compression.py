# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies over HTTP, by the clients that people have."""

import asyncio
import gzip
import json
import shutil
import subprocess
import zlib

import numpy as np
import pytest
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from .harness.server import to_input

ALGORITHMS = [None, "gzip", "deflate"]
COMPRESS = {"gzip": gzip.compress, "deflate": zlib.compress}
MIB = 1 << 20


def arrays():
    """Inputs of the identity model: one that is small, one that takes a thread to compress, and text."""
    return {
        "INPUT_INT32": np.arange(10, dtype=np.int32),
        "INPUT_FP32": np.random.default_rng(1).normal(size=100_000).astype(np.float32),
        "INPUT_BYTES": np.array(["text", "ü" * 1000], object),
    }


def check(result):
    for name, array in arrays().items():
        found = result.as_numpy(name.replace("INPUT", "OUTPUT"))
        sent = array if array.dtype != object else np.array([text.encode() for text in array], object)
        np.testing.assert_array_equal(found, sent)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("request_algorithm", ALGORITHMS)
@pytest.mark.parametrize("response_algorithm", ALGORITHMS)
def test_tritonclient(samples, request_algorithm, response_algorithm, binary):
    """The client gets its tensors for every compression of requests and responses."""
    result = samples.infer(
        "identity",
        arrays(),
        binary=binary,
        request_compression_algorithm=request_algorithm,
        response_compression_algorithm=response_algorithm,
    )
    check(result)


def test_asyncio_client(samples):
    """This one takes compressed responses whether it was told to or not, and decompresses those to inferences alone."""

    async def main():
        async with tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{samples.port}") as client:
            assert (await client.get_server_metadata())["name"] == "triton"
            assert (await client.get_model_config("identity"))["name"] == "identity"
            inputs = [to_input(name, array) for name, array in arrays().items()]
            for request in ALGORITHMS:
                for response in ALGORITHMS:
                    check(
                        await client.infer(
                            "identity",
                            inputs,
                            request_compression_algorithm=request,
                            response_compression_algorithm=response,
                        )
                    )
            with pytest.raises(InferenceServerException, match="unexpected inference input 'X'"):
                await client.infer("identity", [to_input("X", np.zeros(1, np.int32))])

    asyncio.run(main())


def test_answers_are_compressed(samples):
    """Compressed responses are not longer than necessary."""
    document = {"inputs": [{"name": "INPUT_INT32", "datatype": "INT32", "shape": [50_000], "data": [7] * 50_000}]}
    body = json.dumps(document).encode()
    for encoding, compress in COMPRESS.items():
        headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
        answer = samples.request("POST", "/v2/models/identity/infer", compress(body), headers)
        assert (answer.status, answer.headers["Content-Encoding"]) == (200, encoding)
        assert len(answer.body) < 5000
        decompressed = gzip.decompress(answer.body) if encoding == "gzip" else zlib.decompress(answer.body)
        assert json.loads(decompressed)["outputs"][0]["data"] == [7] * 50_000


def test_curl(samples):
    """`curl --compressed`."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    document = {"inputs": [{"name": "INPUT_BYTES", "datatype": "BYTES", "shape": [1], "data": ["x" * 10_000]}]}
    url = f"http://127.0.0.1:{samples.port}/v2/models/identity/infer"
    command = [curl, "--silent", "--show-error", "--compressed", "--include", "--data-binary", "@-", url]
    said = subprocess.run(command, input=json.dumps(document).encode(), capture_output=True, check=True).stdout
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"content-encoding: " in head.lower()
    assert json.loads(body)["outputs"][0]["data"] == ["x" * 10_000]


def test_generate(samples):
    """Its requests may be compressed, its responses never are; so with streams."""
    body = gzip.compress(json.dumps({"INPUT_INT32": [1, 2]}).encode())
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    answer = samples.request("POST", "/v2/models/identity/generate", body, headers)
    assert json.loads(answer.body)["OUTPUT_INT32"] == [1, 2]
    answer = samples.request("POST", "/v2/models/identity/generate_stream", body, headers)
    assert json.loads(answer.body.removeprefix(b"data: "))["OUTPUT_INT32"] == [1, 2]


def test_load(model, serve):
    """The bodies of other endpoints may be compressed, too."""
    model("line", "class TritonPythonModel:\n    def execute(self, requests): pass\n")
    server = serve("--model-control-mode=explicit")
    tensors = {"input": [{"name": "IN", "data_type": "TYPE_INT8", "dims": [1]}]}
    tensors["output"] = [{"name": "OUT", "data_type": "TYPE_INT8", "dims": [1]}]
    config = json.dumps({"backend": "python", "max_batch_size": 3, **tensors})
    body = gzip.compress(json.dumps({"parameters": {"config": config}}).encode())
    answer = server.request("POST", "/v2/repository/models/line/load", body, {"Content-Encoding": "gzip"})
    assert (answer.status, answer.body) == (200, b"")
    assert json.loads(server.request("GET", "/v2/models/line/config").body)["max_batch_size"] == 3


def test_refusals(samples):
    """A body that is not compressed as it claims, and an unknown encoding, are refused."""
    for body, encoding, status in ((b"{}", "gzip", 400), (gzip.compress(b"{}")[:-3], "gzip", 400), (b"{}", "br", 501)):
        answer = samples.request("POST", "/v2/models/identity/infer", body, {"Content-Encoding": encoding})
        assert (answer.status, list(json.loads(answer.body))) == (status, ["error"])
        assert ("Accept-Encoding" in answer.headers) is (status == 501)


def peak_bytes(server):
    """The most memory that the server itself has ever used."""
    with open(f"/proc/{server.process.pid}/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def test_bomb(model, serve):
    """A small body that becomes very large takes no more memory than the limit allows."""
    model("line", "class TritonPythonModel:\n    def execute(self, requests): pass\n")
    server = serve(f"--http-max-input-size={4 * MIB}")
    compressor = zlib.compressobj(9)
    bomb = b"".join([compressor.compress(bytes(MIB)) for _ in range(512)]) + compressor.flush()
    before = peak_bytes(server)
    for _ in range(3):
        answer = server.request("POST", "/v2/models/line/infer", bomb, {"Content-Encoding": "deflate"})
        assert answer.status == 400
        assert json.loads(answer.body) == {
            "error": f"the request has more than {4 * MIB} bytes once decompressed, the server accepts {4 * MIB}"
        }
    assert peak_bytes(server) - before < 32 * MIB
