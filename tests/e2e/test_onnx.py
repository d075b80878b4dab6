# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime by its C API, from the package that pip installs: models of nothing but a model.onnx."""

import importlib.util
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = "const void* OrtGetApiBase(void) { return 0; }"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed (pip install onnxruntime)"
)


def field(number, value):
    """One field of a protobuf message: a small number, a text, or a message as bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 1 << 14
    return bytes([number << 3 | 2, len(data) & 0x7F | 0x80, len(data) >> 7]) + data


def tensor(name, columns):
    """An ONNX ValueInfoProto: FP32, with any number of rows."""
    shape = field(1, field(2, "rows")) + field(1, field(1, columns))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def onnx_model():
    """An ONNX ModelProto: SUM = A + B, DIFFERENCE = A - B."""
    nodes = (("Add", "SUM"), ("Sub", "DIFFERENCE"))
    graph = b"".join(
        field(1, field(1, "A") + field(1, "B") + field(2, output) + field(4, kind)) for kind, output in nodes
    )
    graph += field(2, "graph")
    graph += b"".join(field(11, tensor(name, 3)) for name in ("A", "B"))
    graph += b"".join(field(12, tensor(name, 3)) for name in ("SUM", "DIFFERENCE"))
    return field(1, 7) + field(7, graph) + field(8, field(1, "") + field(2, 13))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the backend "onnxruntime". It is linked as it would be for any version of ONNX Runtime."""
    folder = tmp_path_factory.mktemp("onnx")
    soname = "libonnxruntime.so.1"
    shared = ["-shared", "-fPIC", "-O1"]
    stub = ["gcc", *shared, "-x", "c", "-", f"-Wl,-soname,{soname}", "-o", folder / soname]
    subprocess.run(stub, input=STUB, text=True, check=True)
    (folder / "backends" / "onnxruntime").mkdir(parents=True)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *shared, f"-I{ROOT / 'include'}"]
    source, library = ROOT / "tests/native/onnx.cc", folder / "backends" / "onnxruntime" / "libtriton_onnxruntime.so"
    subprocess.run([*command, source, folder / soname, "-o", library], check=True)
    return folder / "backends"


def test_models_of_a_file_alone(serve, model, folder):
    """The backend is found by the file, its library in the package; it completes the configuration, and executes."""
    (model("bare", None, None) / "1" / "model.onnx").write_bytes(onnx_model())
    (model("broken", None, None) / "1" / "model.onnx").write_bytes(b"no model")
    server = serve(f"--backend-directory={folder}", "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        config = client.get_model_config("bare")
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert config["instance_group"][0]["count"] == 2
    assert [(each["name"], each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])] == [
        (name, "TYPE_FP32", [3]) for name in ("A", "B", "SUM", "DIFFERENCE")
    ]
    assert "model.onnx" in reasons["broken"]
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
    answer = server.infer("bare", {"A": first, "B": second})
    assert answer.as_numpy("SUM").tolist() == (first + second).tolist()
    assert answer.as_numpy("DIFFERENCE").tolist() == (first - second).tolist()
