# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""With --no-fast-path no native codec is even loaded: neither in the server, nor in a model's process.

`scripts/test --no-fast-path` runs any tests in that way: see plugins/fast_path.py.
"""

import json
import os
import re
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from pyruntime.utils import fast_path
from tests.plugins.fast_path import PROTOCOLS

# The extensions that do nothing but what Python does, too; `_http2` and `_triton` have parts that are for them alone.
CODECS = re.compile(r"/(_codecs|_frames|_plain)\.[^/]*so$", re.MULTILINE)

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value)]) for value in values]
"""
STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([value]))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def codecs_of(server):
    """The codecs that the server and its models have loaded."""
    maps = [Path(f"/proc/{each.pid}/maps").read_text() for each in [server.process, *server.family()]]
    return {name for text in maps for name in CODECS.findall(text)}


def doubled_sockets(server):
    """The sockets for which the server has more than one descriptor."""
    links = Counter()
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # one that has just been closed
            links[os.readlink(entry)] += 1
    return {link for link, count in links.items() if count > 1 and link.startswith("socket:")}


def is_answered_natively(server, raw):
    """Whether native threads answer a client of a C++ backend past Python, by a second descriptor of its connection."""
    before = doubled_sockets(server)
    with closing(raw.Client(server)) as client:
        client.teach(raw.infer("native", 1, 2))
        return bool(doubled_sockets(server) - before)


def ask_all(server):
    """Requests of each kind: to stubs and to a C++ backend, over both protocols, plain ones and others."""
    values = np.array([1, -2], np.int32)
    for model in ("echo", "native"):
        for binary in (True, False):
            result = server.infer(model, {"INPUT0": values}, binary=binary)
            assert np.array_equal(result.as_numpy("OUTPUT0"), values)
        with closing(server.grpc()) as client:
            tensor = tritonclient.grpc.InferInput("INPUT0", [2], "INT32").set_data_from_numpy(values)
            for _ in range(3):
                assert np.array_equal(client.infer(model, [tensor]).as_numpy("OUTPUT0"), values)
    generated = json.loads(server.request("POST", "/v2/models/echo/generate", '{"INPUT0": [1, -2]}').body)
    assert generated["OUTPUT0"] == [1, -2]
    assert [event["OUTPUT0"] for event in server.stream("stream", INPUT0=[1, -2])] == [1, -2]
    assert server.request("POST", "/v2/models/echo/infer", "{").status == 400


@pytest.fixture
def start(serve, model, install_backends, raw):
    """`start(*options)`: a server of models of each kind."""
    model("echo", ECHO, raw.config("python"))
    model("stream", STREAM, raw.config("python", more=DECOUPLED))
    model("native", None, raw.config("identity"))
    backends = install_backends("identity")
    return lambda *options: serve(f"--backend-directory={backends}", *options)


def test_no_codec_is_loaded(start, raw):
    """What is not loaded cannot be called, and no native thread reads requests by itself. The log says so."""
    server = start("--no-fast-path")
    ask_all(server)
    assert codecs_of(server) == set()
    assert not is_answered_natively(server, raw)
    assert "Python reads and writes all requests, which is slower (--no-fast-path)" in server.log


def test_the_default(start, raw, monkeypatch):
    """Without the option the same requests have the same answers, and native code is there."""
    monkeypatch.delenv(fast_path.VARIABLE, raising=False)
    server = start()
    ask_all(server)
    assert codecs_of(server) >= {"_codecs", "_frames"}
    assert is_answered_natively(server, raw)


def test_files_of_the_protocols():
    """Each file that .ci/run is to try in both ways is there."""
    assert {path.name for path in Path(__file__).parent.iterdir()} >= PROTOCOLS
