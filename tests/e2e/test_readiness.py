# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that say themselves whether they are ready."""

import json
import os

import numpy as np
import pytest

PATHS = ("/v2/models/m/ready", "/v2/health/ready")
ANSWER = """
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
# Is ready while a file exists, and then with the answer in the file.
MOODY = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def is_ready(self):
        with open(self.folder + "/mood") as mood:
            return eval(mood.read())
"""


@pytest.fixture
def moody(tmp_path, model, serve, patient):
    """A server and the file that its model looks into."""
    mood = model("m", MOODY + ANSWER) / "mood"
    mood.write_text("True")
    model("other", "class TritonPythonModel:" + ANSWER)
    return serve(wrapper=patient), mood


def test_model_is_asked_each_time(moody):
    """Clients see the model's answer, for the model and for the server."""
    server, mood = moody
    for said, status in (("True", 200), ("False", 400), ("True", 200)):
        mood.write_text(said)
        assert [server.request("GET", path).status for path in PATHS] == [status, status]
    assert server.request("GET", "/v2/models/other/ready").status == 200
    mood.write_text("False")
    body = server.request("GET", "/v2/models/m/ready").body
    assert json.loads(body) == {"error": "Model version not ready"}


@pytest.mark.parametrize("said", ["1", "None", "1 / 0"])
def test_nonsense_is_not_ready(moody, said):
    """A model that returns anything but a boolean, or raises, is not ready; it serves all the same."""
    server, mood = moody
    mood.write_text(said)
    assert [server.request("GET", path).status for path in PATHS] == [400, 400]
    assert server.infer("m", {"IN": np.array([3])}).as_numpy("OUT").tolist() == [3]
    mood.write_text("True")
    assert server.is_ready()


def test_nobody_else_waits(moody):
    """While a model decides on its readiness, all models serve; further questions get the same answer."""
    server, mood = moody
    mood.unlink()
    os.mkfifo(mood)
    request = b"GET /v2/models/m/ready HTTP/1.1\r\nHost: any\r\n\r\n"
    with server.connect() as first, server.connect() as second:
        first.sendall(request)
        second.sendall(request)
        for name in ("m", "other"):
            assert server.infer(name, {"IN": np.array([3])}).as_numpy("OUT").tolist() == [3]
        assert server.request("GET", "/v2/health/live").status == 200
        mood.write_text("True")
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert second.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_not_strict(tmp_path, model, serve):
    """A server that is not strict does not ask its models."""
    (model("m", MOODY + ANSWER) / "mood").write_text("False")
    server = serve("--strict-readiness=false")
    assert [server.request("GET", path).status for path in PATHS] == [400, 200]
