# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "openvino": models and extensions of OpenVINO. More is in tests/backends/test_openvino.py."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from .harness.operations import CustomOperations, libraries

openvino = pytest.importorskip("openvino", reason="openvino is not installed (pip install openvino)")

from openvino import opset13 as ops  # noqa: E402

# OpenVINO's Python interface cannot make a node of an operation that is in a library, so the model is written as text.
SCALING = """<?xml version="1.0"?>
<net name="scaling" version="11">
  <layers>
    <layer id="0" name="IN" type="Parameter" version="opset1">
      <data shape="?,3" element_type="f32"/>
      <output><port id="0" precision="FP32" names="IN"><dim>-1</dim><dim>3</dim></port></output>
    </layer>
    <layer id="1" name="scale" type="Scale" version="test">
      <input><port id="0" precision="FP32"><dim>-1</dim><dim>3</dim></port></input>
      <output><port id="1" precision="FP32" names="OUT"><dim>-1</dim><dim>3</dim></port></output>
    </layer>
    <layer id="2" name="result" type="Result" version="opset1">
      <input><port id="0" precision="FP32"><dim>-1</dim><dim>3</dim></port></input>
    </layer>
  </layers>
  <edges>
    <edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
    <edge from-layer="1" from-port="1" to-layer="2" to-port="0"/>
  </edges>
</net>
"""


def test_a_model_of_a_file_alone(serve, model):
    """The backend is found by the file, and the configuration completed by it."""
    a, b = (ops.parameter([-1, 3], np.float32, name=name) for name in ("A", "B"))
    total = ops.add(a, b)
    total.output(0).get_tensor().set_names({"SUM"})
    openvino.save_model(openvino.Model([total], [a, b], "add"), model("bare", None, None) / "1" / "model.xml")
    server = serve()
    with closing(server.client()) as client:
        config = client.get_model_config("bare")
    assert (config["backend"], config["default_model_filename"]) == ("openvino", "model.xml")
    assert (config["max_batch_size"], config["output"][0]["name"]) == (4, "SUM")
    answer = server.infer("bare", {name: np.full((2, 3), 4, np.float32) for name in ("A", "B")})
    assert answer.as_numpy("SUM").tolist() == [[8] * 3] * 2


def test_an_output_with_two_names_is_two_outputs(serve, model):
    """If the configuration names both; else any of them."""
    taken = ops.parameter([-1, 3], np.float32, name="A")
    made = ops.add(taken, taken)
    made.output(0).get_tensor().set_names({"SUM", "TOTAL"})
    tensors = ['input { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }']
    for name, outputs in (("both", ("TOTAL", "SUM")), ("one", ("TOTAL",))):
        wanted = [f'output {{ name: "{each}" data_type: TYPE_FP32 dims: [ 3 ] }}' for each in outputs]
        folder = model(name, None, "\n".join(['backend: "openvino" max_batch_size: 4', *tensors, *wanted]))
        openvino.save_model(openvino.Model([made], [taken], "add"), folder / "1" / "model.xml")
    server = serve()
    answer = server.infer("both", {"A": np.full((2, 3), 4, np.float32)})
    assert answer.as_numpy("SUM").tolist() == answer.as_numpy("TOTAL").tolist() == [[8] * 3] * 2
    assert server.infer("one", {"A": np.ones((1, 3), np.float32)}).as_numpy("TOTAL").tolist() == [[2] * 3]


class TestCustomOperations(CustomOperations):
    FRAMEWORK = f"openvino {openvino.__version__.partition('-')[0]}"

    @pytest.fixture
    def compile_op(self, compile_library):
        """See CustomOperations."""
        folder = Path(openvino.__file__).parent
        (library,) = (folder / "libs").glob("libopenvino.so.*")
        options = ["-isystem", folder / "include", f"-L{folder / 'libs'}", "-Wl,--no-as-needed", f"-l:{library.name}"]
        return lambda factor: compile_library("openvino_custom_op.cc", f"-DFACTOR={factor}", *options)

    @pytest.fixture
    def scaling(self, model):
        """See CustomOperations."""

        def write(name, *paths):
            folder = model(name, None, 'backend: "openvino" instance_group { kind: KIND_CPU }\n' + libraries(*paths))
            (folder / "1" / "model.xml").write_text(SCALING)
            (folder / "1" / "model.bin").touch()
            return folder

        return write
