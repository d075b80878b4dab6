# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "vllm" in a server, with tests/stand_ins/vllm in place of vLLM."""

import json
from pathlib import Path

import pytest

STAND_INS = Path(__file__).resolve().parents[1] / "stand_ins"


@pytest.fixture
def server(serve, model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    folder = model("m", None, 'backend: "vllm"\n')
    (folder / "1" / "model.json").write_text(json.dumps({"model": "tiny"}))
    return serve()


def test_generate(server):
    """`generate` and `generate_stream` take sampling parameters beside the inputs."""
    answer = server.request("POST", "/v2/models/m/generate", json.dumps({"text_input": "a b", "max_tokens": 3}))
    assert json.loads(answer.body)["text_output"] == "a b a b a"
    wanted = {"stop": ["x", "y"], "max_tokens": 2, "temperature": 0}
    events = server.stream("m", text_input="a b", stream=True, parameters=wanted)
    assert [each["text_output"] for each in events] == [" a", " b"]


def test_the_engine_dies(server, wait_until):
    """All open requests get an error that says so, and the instance starts again."""
    (pid,) = [each.pid for each in server.stubs()]
    with server.streaming("m", text_input="wait here", stream=True) as waiting:
        assert next(waiting)["text_output"] == " wait"
        (died,) = server.stream("m", text_input="die now", stream=True)
        assert "EngineCore encountered an issue" in died["error"]
        (left,) = waiting
        assert left == died
    wait_until(lambda: pid not in [each.pid for each in server.stubs()])
    assert server.stream("m", text_input="again", stream=True, max_tokens=1)[0]["text_output"] == " again"
    assert "the vLLM engine of model 'm' has died; its instance is started again" in server.log
