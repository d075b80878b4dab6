# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What files of frameworks tell without their framework: operations, files that belong to them, arguments."""

import importlib.util
import json
import pickle
import zipfile

import pytest

from pyruntime.backends.jax.contents import read_contents as read_jax
from pyruntime.backends.onnxruntime.contents import read_contents as read_onnx
from pyruntime.backends.openvino.contents import read_contents as read_openvino
from pyruntime.backends.pytorch.contents import read_contents as read_torch
from pyruntime.backends.tensorflow import contents as tensorflow
from pyruntime.backends.toolkit.protobuf import fields, text

ARGUMENTS = """
class B(Module):
  def forward(self: __torch__.B,
    first: Tensor,
    second: Dict[str, Tensor],
    third: Optional[Tensor]=None,
    fourth: Tuple[float, float]=(2., 3.)) -> Tensor:
    return torch.add(ops.test.scale(first), torch.relu(first))
"""
SOURCE = """
class Second(torch.nn.Module):
    def forward(self, x): return x

class First(torch.nn.Module):
    def helper(self): pass
    def forward(self, a, *, b): return a
"""


def varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def message(*given):
    """A message of (number, value): a text, the bytes of a message, or an integer."""
    encoded = b""
    for number, value in given:
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(data)) + data
    return encoded


def node(operation, domain="", *attributes):
    return message((3, "name"), (4, operation), (7, domain), *((5, each) for each in attributes))


class TestProtobuf:
    def test_fields(self):
        """Integers and bytes, and numbers of a fixed size, which are bytes too."""
        data = message((1, 300), (2, "abc"), (200, 1)) + b"\x1d\x01\x02\x03\x04" + b"\x21" + bytes(8)
        found = [
            (number, value if isinstance(value, int) else bytes(value)) for number, value in fields(memoryview(data))
        ]
        assert found == [(1, 300), (2, b"abc"), (200, 1), (3, b"\x01\x02\x03\x04"), (4, bytes(8))]
        assert text(memoryview(message((2, "a"), (2, "b"))), 2) == "b"
        assert text(memoryview(b""), 2) == ""

    @pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\xff" * 11, b"\x0b", b"\x02\x00", b"\x0d\x00"])
    def test_what_is_no_message(self, data):
        """Lengths beyond the end, numbers without an end, unknown types and the field 0."""
        with pytest.raises(ValueError, match=r"field|number"):
            list(fields(memoryview(data)))


class TestOnnx:
    def write(self, folder, *graph, more=()):
        path = folder / "m.onnx"
        path.write_bytes(message((1, 8), (7, message(*graph)), *more))
        return str(path)

    def test_operations(self, tmp_path):
        """Those of ONNX and of ONNX Runtime are known; others are custom, unless the model defines them itself."""
        inner = message((1, node("Scale", "test")))
        loop = node("Loop", "", message((1, "body"), (6, inner)))
        function = message((1, "Own"), (10, "local"), (7, node("Mul")))
        nodes = [node("Add"), node("Add"), node("Gelu", "com.microsoft"), node("Own", "local"), loop]
        contents = read_onnx(self.write(tmp_path, *((1, each) for each in nodes), more=[(25, function)]))
        assert contents.operations == {"Add": 2, "com.microsoft::Gelu": 1, "Loop": 1, "test::Scale": 1, "Mul": 1}
        assert contents.custom == ["test::Scale"]

    def test_weights_in_files_of_their_own(self, tmp_path):
        """They are named once, and so are those in a folder of the model's name."""
        tensor = message((8, "w"), (13, message((1, "location"), (2, "w.bin"))), (13, message((1, "offset"), (2, "0"))))
        constant = node("Constant", "", message((1, "value"), (5, tensor)))
        path = self.write(tmp_path, (5, tensor), (5, tensor), (1, constant))
        assert read_onnx(path).companions == {"w.bin": "w.bin"}
        (tmp_path / "folder.onnx").mkdir()
        (tmp_path / "m.onnx").rename(tmp_path / "folder.onnx" / "folder.onnx")
        assert read_onnx(str(tmp_path / "folder.onnx")).operations == {"Constant": 1}

    def test_what_is_no_model(self, tmp_path):
        """A reader says that it is none."""
        (tmp_path / "m.onnx").write_bytes(b"")
        with pytest.raises(ValueError, match="empty"):
            read_onnx(str(tmp_path / "m.onnx"))


class TestTorch:
    def test_torchscript(self, tmp_path):
        """The operations in the code, and the arguments of the outermost class, which the pickle names.

        Those with a default are optional.
        """
        path = tmp_path / "m.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("m/constants.pkl", pickle.dumps(()))
            archive.writestr("m/data.pkl", b"\x80\x02c__torch__\nB\n)\x81.")
            archive.writestr("m/code/__torch__.py", "class A(Module):\n  def forward(self: x) -> Tensor:\n" + ARGUMENTS)
        contents = read_torch(str(path))
        assert contents.operations == {"aten::add": 1, "test::scale": 1, "aten::relu": 1}
        assert contents.custom == ["test::scale"]
        assert contents.arguments == ["first", "second", "third", "fourth"]
        assert contents.optional == ["third", "fourth"]

    def test_exported_programs(self, tmp_path):
        """The targets of all nodes, also those in graphs of control flow."""
        inner = {"graph": {"nodes": [{"target": "torch.ops.test.scale.default", "inputs": []}]}}
        nodes = [
            {"target": "torch.ops.aten.add.Tensor", "inputs": []},
            {"target": "torch.ops.higher_order.cond", "inputs": [{"arg": {"as_graph": inner}}]},
            {"target": "_operator.getitem", "inputs": []},
        ]
        with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
            archive.writestr("m/archive_format", "pt2")
            archive.writestr("m/models/model.json", json.dumps({"graph_module": {"graph": {"nodes": nodes}}}))
        contents = read_torch(str(tmp_path / "m.pt2"))
        assert contents.operations == {"aten::add": 1, "higher_order::cond": 1, "test::scale": 1}
        assert contents.custom == ["test::scale"]

    def test_modules(self, tmp_path):
        """The first class by name counts, as for the backend; its code and its weights belong together."""
        (tmp_path / "model.py").write_text(SOURCE)
        (tmp_path / "w.safetensors").write_bytes(b"weights")
        found = read_torch(str(tmp_path / "model.py"))
        assert (found.arguments, found.companions) == (["a", "b"], {"w.safetensors": "w.safetensors"})
        found = read_torch(str(tmp_path / "w.safetensors"))
        assert (found.arguments, found.companions) == (["a", "b"], {"model.py": "model.py"})
        (tmp_path / "model.py").write_text(SOURCE.replace("a, *, b", "a, b=1.0, *, c, d=None"))
        found = read_torch(str(tmp_path / "model.py"))
        assert (found.arguments, found.optional) == (["a", "b", "c", "d"], ["b", "d"])
        (tmp_path / "model.py").unlink()
        assert read_torch(str(tmp_path / "w.safetensors")).arguments == []


class TestOpenvino:
    LAYERS = """<?xml version="1.0"?><net name="n" version="11"><layers>
    <layer id="0" name="a" type="Parameter" version="opset1"><data shape="?,3"/></layer>
    <layer id="1" name="b" type="Relu" version="opset14"/><layer id="2" name="c" type="Relu" version="opset1"/>
    <layer id="3" name="d" type="Scale" version="test"/></layers><edges/></net>"""

    def test_operations_and_weights(self, tmp_path):
        """An operation of another set is custom. The file of weights has the name of the model's."""
        (tmp_path / "scale.xml").write_text(self.LAYERS)
        contents = read_openvino(str(tmp_path / "scale.xml"))
        assert contents.operations == {"Parameter": 1, "Relu": 2, "test::Scale": 1}
        assert (contents.custom, contents.companions) == (["test::Scale"], {})
        (tmp_path / "scale.bin").touch()
        assert read_openvino(str(tmp_path / "scale.xml")).companions == {"scale.bin": "model.bin"}

    def test_other_files(self, tmp_path):
        """ONNX is read as such; other formats, and what is no XML, are not."""
        (tmp_path / "m.onnx").write_bytes(message((7, message((1, node("Relu"))))))
        assert read_openvino(str(tmp_path / "m.onnx")).operations == {"Relu": 1}
        assert read_openvino(str(tmp_path / "m.pdmodel")).operations == {}
        (tmp_path / "m.xml").write_text("<net>")
        with pytest.raises(ValueError, match="no XML"):
            read_openvino(str(tmp_path / "m.xml"))


class TestTensorflow:
    def write(self, folder):
        """A SavedModel of three nodes and a function of two more."""
        operations = [message((1, "name"), (2, name)) for name in ("Add", "inner", "_Arg")]
        inner = [(3, message((1, "name"), (2, name))) for name in ("Add", "Scale")]
        library = message((1, message((1, message((1, "inner"))), *inner)))
        graph = message(*((1, each) for each in operations), (2, library))
        (folder / "saved_model.pb").write_bytes(message((1, 1), (2, message((1, b""), (2, graph)))))
        return str(folder)

    def test_operations(self, tmp_path, monkeypatch):
        """The nodes of functions count, and calls of functions do not. What TensorFlow does not have is custom."""
        monkeypatch.setattr(tensorflow, "own_operations", lambda: {"Add"})
        contents = tensorflow.read_contents(self.write(tmp_path))
        assert contents.operations == {"Add": 2, "_Arg": 1, "Scale": 1}
        assert contents.custom == ["Scale"]

    def test_without_the_package(self, tmp_path, monkeypatch):
        """Then it is not known which operations are custom."""
        monkeypatch.setattr(tensorflow, "own_operations", set)
        assert tensorflow.read_contents(self.write(tmp_path)).custom == []

    def test_own_operations(self):
        """The package names them, in any version."""
        if importlib.util.find_spec("tensorflow") is None:
            pytest.skip("tensorflow is not installed (pip install tensorflow-cpu)")
        assert {"Add", "Const", "StatefulPartitionedCall"} <= tensorflow.own_operations()


class TestJax:
    def test_what_is_no_export(self, tmp_path):
        """A reader says that it is none. A real file is in test_jax.py."""
        for data in (b"no export", b"\xff" * 64, b""):
            (tmp_path / "m.jax").write_bytes(data)
            with pytest.raises(ValueError):
                read_jax(str(tmp_path / "m.jax"))
