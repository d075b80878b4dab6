# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""OpenVINO models: their tensors, shapes and batches. The server is in tests/e2e."""

import numpy as np
import pytest

from pyruntime.utils.errors import LoadError

openvino = pytest.importorskip("openvino", reason="openvino is not installed (pip install openvino)")

from openvino import opset13 as ops  # noqa: E402

BACKEND = 'backend: "openvino" instance_group { kind: KIND_CPU }\n'


def parameters(**values):
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(*item) for item in values.items())


def add_sub(*shape, names=True):
    """A model of A and B. Without `names` its tensors have none, but its operations."""
    a, b = (ops.parameter(list(shape), np.float32, name=name) for name in ("A", "B"))
    made = {"A": a, "B": b, "SUM": ops.add(a, b, name="sum"), "DIFFERENCE": ops.subtract(a, b, name="difference")}
    for name, node in made.items():
        node.output(0).get_tensor().set_names({name, f"{name}:0"} if names else set())
    return openvino.Model([made["SUM"], made["DIFFERENCE"]], [a, b], "add_sub")


@pytest.fixture
def saved(tmp_path):
    """`saved(model, config=None)`: the folder of an OpenVINO model."""

    def write(made, config=None):
        (tmp_path / "m" / "1").mkdir(parents=True)
        openvino.save_model(made, tmp_path / "m" / "1" / "model.xml", compress_to_fp16=False)
        if config is not None:
            (tmp_path / "m" / "config.pbtxt").write_text(config)
        return tmp_path / "m"

    return write


def tensors(model):
    return [(each["name"], each["dims"]) for each in (*model.config["input"], *model.config["output"])]


def pair(first, second=None):
    return {"A": np.array(first, np.float32), "B": np.array(second or first, np.float32)}


def refused(load_model, folder):
    with pytest.raises(LoadError) as caught:
        load_model(folder)
    return str(caught.value)


def test_a_batch_of_a_file_alone(saved, load_model):
    """Names, datatypes, shapes and batching come from the file; a batch is one call."""
    model = load_model(saved(add_sub(-1, 3)))
    assert tensors(model) == [(name, [3]) for name in ("A", "B", "SUM", "DIFFERENCE")]
    assert (model.config["backend"], model.config["max_batch_size"]) == ("openvino", 4)
    first, second = model.execute([pair([[1, 2, 3]]), pair([[4, 5, 6], [7, 8, 9]])])
    again = model.infer(pair([[0, 0, 0]]))
    assert again["SUM"].tolist() == [[0, 0, 0]]
    # The outputs of earlier calls are not those of the last one.
    assert first["SUM"].tolist() == [[2, 4, 6]]
    assert second["SUM"].tolist() == [[8, 10, 12], [14, 16, 18]]
    assert second["DIFFERENCE"].tolist() == [[0] * 3] * 2


def test_names(saved, load_model):
    """A tensor with several names may be configured by any; one without a name has that of its operation."""
    tensor = '{} {{ name: "{}" data_type: TYPE_FP32 dims: [ 2 ] }}\n'
    config = "".join(tensor.format("input", name) for name in ("B:0", "A:0")) + tensor.format("output", "DIFFERENCE:0")
    folder = saved(add_sub(2), BACKEND + config)
    answer = load_model(folder).infer({"A:0": np.array([5, 5], np.float32), "B:0": np.array([1, 2], np.float32)})
    assert answer["DIFFERENCE:0"].tolist() == [4, 3]


def test_no_names(saved, load_model):
    """OpenVINO itself names the outputs of such a model."""
    model = load_model(saved(add_sub(2, names=False)))
    names = [name for name, _ in tensors(model)]
    assert names[:2] == ["A", "B"]
    assert model.infer(pair([1, 2]))[names[2]].tolist() == [2, 4]


def test_a_file_of_onnx(tmp_path, load_model):
    """With the backend in its configuration, model.onnx is read by OpenVINO too."""
    onnx = pytest.importorskip("onnx", reason="onnx, which makes the model, is not installed (pip install onnx)")
    floats = (onnx.TensorProto.FLOAT, ["rows", 3])
    described = [onnx.helper.make_tensor_value_info(name, *floats) for name in ("A", "C")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["A"], ["C"])], "g", described[:1], described[1:])
    (tmp_path / "m" / "1").mkdir(parents=True)
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "m" / "1" / "model.onnx")
    (tmp_path / "m" / "config.pbtxt").write_text(BACKEND)
    model = load_model(tmp_path / "m")
    assert model.config["max_batch_size"] == 4
    assert model.infer({"A": np.ones((2, 3), np.float32)})["C"].tolist() == [[-1] * 3] * 2


def test_texts(saved, load_model):
    """BYTES are strings, in UTF-8; a scalar has one dimension."""
    texts = ops.parameter([-1], openvino.Type.string, name="S")
    texts.output(0).get_tensor().set_names({"S"})
    model = load_model(saved(openvino.Model([ops.result(texts)], [texts], "texts"), BACKEND))
    name = model.config["output"][0]["name"]
    answer = model.infer({"S": np.array([[b"a"], ["\u00e9".encode()]], object)})
    assert [each.decode() for each in answer[name].ravel()] == ["a", "\u00e9"]
    for element, message in ((b"\xff", "which strings of OpenVINO must be"), (b"a\0", "ends with a zero byte, which")):
        assert message in str(model.execute([{"S": np.array([[element]], object)}])[0].error)


class TestBatchSizes:
    """A model file that has a batch size, as most files have."""

    TENSORS = "".join(
        f'{noun} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 3 ] }}\n'
        for noun, name in (("input", "A"), ("input", "B"), ("output", "SUM"))
    )

    def test_is_opened(self, saved, load_model):
        """With max_batch_size above 0 any number of rows is taken."""
        model = load_model(saved(add_sub(1, 3), BACKEND + "max_batch_size: 8\n" + self.TENSORS))
        first, second = model.execute([pair([[1, 2, 3]]), pair([[4, 5, 6]])])
        assert (first["SUM"].tolist(), second["SUM"].tolist()) == ([[2, 4, 6]], [[8, 10, 12]])

    def test_is_kept(self, saved, load_model):
        """With SKIP_OV_DYNAMIC_BATCHSIZE only that size is taken."""
        keep = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES")
        folder = saved(add_sub(2, 3), BACKEND + "max_batch_size: 2\n" + self.TENSORS + keep)
        model = load_model(folder)
        assert model.infer(pair([[1, 2, 3], [4, 5, 6]]))["SUM"].tolist() == [[2, 4, 6], [8, 10, 12]]
        result = model.execute([pair([[1, 2, 3]])])[0]
        assert "the model takes batches of 2 rows, and this one has 1: set the parameter ENABLE" in str(result.error)
        (folder / "config.pbtxt").write_text(BACKEND + "max_batch_size: 4\n" + self.TENSORS + keep)
        assert "which SKIP_OV_DYNAMIC_BATCHSIZE keeps, so max_batch_size must be 2, not 4" in refused(
            load_model, folder
        )

    def test_is_filled_up(self, saved, load_model):
        """With ENABLE_BATCH_PADDING too, smaller batches get more rows."""
        more = parameters(SKIP_OV_DYNAMIC_BATCHSIZE="YES", ENABLE_BATCH_PADDING="YES")
        model = load_model(saved(add_sub(4, 3), BACKEND + "max_batch_size: 4\n" + self.TENSORS + more))
        first, second = model.execute([pair([[1, 2, 3]]), pair([[4, 5, 6], [7, 8, 9]])])
        assert (first["SUM"].tolist(), second["SUM"].tolist()) == ([[2, 4, 6]], [[8, 10, 12], [14, 16, 18]])

    def test_needs_no_batch(self, saved, load_model):
        """Without batching the shape stays as it is, unless RESHAPE_IO_LAYERS wants that of the configuration."""
        tensors_of_five = self.TENSORS.replace("[ 3 ]", "[ 5, 3 ]")
        model = load_model(saved(add_sub(1, 3), BACKEND + tensors_of_five + parameters(RESHAPE_IO_LAYERS="YES")))
        assert model.infer(pair([[1, 2, 3]] * 5))["SUM"].tolist() == [[2, 4, 6]] * 5


class TestLoading:
    def test_no_model(self, saved, load_model):
        """The message is OpenVINO's, without places in its source."""
        folder = saved(add_sub(2))
        (folder / "1" / "model.xml").write_text("no model")
        assert "model.xml' cannot be loaded: openvino error: Unable to read the model: " in refused(load_model, folder)

    def test_another_shape(self, saved, load_model):
        """A configuration must agree with the file."""
        folder = saved(
            add_sub(-1, 3), BACKEND + "max_batch_size: 2\n" + TestBatchSizes.TENSORS.replace("[ 3 ]", "[ 4 ]")
        )
        assert "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,3])" in refused(load_model, folder)

    def test_a_type_that_cannot_be_served(self, saved, load_model):
        """The Python interface has no arrays of BF16."""
        node = ops.parameter([2], openvino.Type.bf16, name="A")
        folder = saved(openvino.Model([ops.result(node)], [node], "bf16"))
        assert "of the type bf16, which cannot be served: inputs and outputs must have" in refused(load_model, folder)

    def test_properties(self, saved, load_model):
        """OpenVINO's own refusal of a device is the load's error."""
        folder = saved(add_sub(2), BACKEND + parameters(TARGET_DEVICE="NONE"))
        assert "model 'm' cannot be compiled: openvino error: " in refused(load_model, folder)
