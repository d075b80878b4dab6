# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of PyTorch models, as far as it needs no model: names, parameters, kinds of files, tensors."""

import collections
import io
import pickle
import zipfile

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.backends.pytorch.archives import (
    AOT_INDUCTOR,
    EXPORTED,
    PICKLE,
    TORCHSCRIPT,
    UNKNOWN,
    WEIGHTS,
    kind_of,
    kind_of_names,
)
from pyruntime.backends.pytorch.naming import Arguments, Results, by_index, indices_of
from pyruntime.backends.pytorch.options import Options, read_options
from pyruntime.backends.pytorch.tensors import TorchArrays, from_model, to_model
from pyruntime.backends.toolkit.settings import TensorSpec, read_settings
from pyruntime.utils.errors import ConfigError

TEXTS = TensorSpec("Y", "TYPE_STRING", (-1,))


def options(**parameters):
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return read_options(read_settings({"name": "m", "parameters": values}), 3)


class TestNames:
    def test_indices(self):
        """Every name must have an index, and each another one."""
        assert indices_of(["IN__1", "x__y__0"]) == [1, 0]
        assert indices_of(["IN__1", "OUT__1"]) is indices_of(["IN__1", "OUT"]) is None
        assert by_index(["b__1", "a__0"]) == ["a__0", "b__1"]
        assert by_index(["b", "a__0"]) is None

    @pytest.mark.parametrize(
        ("inputs", "arguments", "order"),
        [
            (["b", "a"], ["a", "b", "c"], ["a", "b"]),
            (["x__1", "x__0"], ["a", "b"], ["x__0", "x__1"]),
            (["b", "x"], ["a", "b"], ["b", "x"]),
            (["b", "a"], None, ["b", "a"]),
        ],
    )
    def test_order(self, inputs, arguments, order):
        """Names of arguments, else indices, else the configuration's order."""
        found = Arguments(inputs, arguments)
        assert found.order == order
        assert found.arrange({name: name for name in inputs}) == (order, {})

    def test_omitted_inputs(self):
        """What comes after an omitted argument is passed by name, if the names are those of arguments."""
        named = Arguments(["a", "b", "c"], ["a", "b", "c"])
        assert named.arrange({"a": 1, "c": 3}) == ([1], {"c": 3})
        indexed = Arguments(["x__0", "x__1"], None)
        assert indexed.arrange({"x__0": 1}) == ([1], {})
        with pytest.raises(ValueError, match=r"^input 'x__0' must be given, because 'x__1' comes after it$"):
            indexed.arrange({"x__1": 1})

    @pytest.mark.parametrize(
        ("outputs", "returned"),
        [
            (["OUT__1", "OUT__0"], ("zero", "one")),
            (["one", "OUT__0"], ["one", "zero"]),
            (["OUT__1", "OUT__0"], {"OUT__0": "zero", "OUT__1": "one"}),
        ],
    )
    def test_results(self, outputs, returned):
        """Indices count, else the configuration's order; of a dict the keys."""
        found = Results(outputs).find(tuple(returned) if isinstance(returned, list) else returned, outputs)
        assert list(found.values()) == ["one", "zero"]
        assert Results(["OUT"]).find(7, ["OUT"]) == {"OUT": 7}
        assert Results(["OUT"]).find(["a", "b"], ["OUT"]) == {"OUT": ["a", "b"]}
        assert Results(["OUT"]).find([], ["OUT"]) == {"OUT": []}

    def test_results_that_are_missing(self):
        """The message says what the model returned."""
        with pytest.raises(ValueError, match=r"^the model returned 1 outputs, and 'O__1' is number 1 of them$"):
            Results(["O__0", "O__1"]).find((1,), ["O__1"])
        with pytest.raises(ValueError, match=r"^the model returned a dict without the output 'O', it has: P, Q$"):
            Results(["O"]).find({"P": 1, "Q": 2}, ["O"])


class TestOptions:
    def test_defaults(self):
        """An instance has its part of the cores, and computes no gradients."""
        found = options()
        assert (found.threads, found.interop_threads, found.inference_mode) == (3, None, True)
        assert (found.optimized_execution, found.cache_cleaning, found.compile) == (True, False, None)
        assert not found.weight_sharing
        assert options(ENABLE_WEIGHT_SHARING="true").weight_sharing
        assert (found.jit_executor, found.jit_profiling, found.tensor_fuser, found.cudnn) == (None, None, None, True)

    def test_parameters(self):
        """The names are those of Triton's backend in C++ and of its backend in Python; the former have precedence."""
        assert options(NUM_THREADS="2", NUM_INTEROP_THREADS="4").threads == 2
        found = options(NUM_THREADS="2", INTRA_OP_THREAD_COUNT="1", INTER_OP_THREAD_COUNT="5", INFERENCE_MODE="false")
        assert (found.threads, found.interop_threads, found.inference_mode) == (1, 5, False)
        found = options(DISABLE_OPTIMIZED_EXECUTION="true", ENABLE_JIT_PROFILING="false", ENABLE_JIT_EXECUTOR="true")
        assert (found.optimized_execution, found.jit_profiling, found.jit_executor) == (False, False, True)
        found = options(ENABLE_TENSOR_FUSER="false", DISABLE_CUDNN="true")
        assert (found.tensor_fuser, found.cudnn) == (False, False)

    def test_compilation(self):
        """A model is compiled if its parameters say how; Triton's way not to compile is taken too."""
        assert options(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"dynamic": true}').compile == {"dynamic": True}
        assert options(TORCH_COMPILE_OPTIONAL_PARAMETERS='{"disable": true}').compile is None
        for text in ("[]", "no JSON"):
            with pytest.raises(ConfigError, match=r"which must be a JSON object with arguments of torch.compile$"):
                options(TORCH_COMPILE_OPTIONAL_PARAMETERS=text)

    def test_refused(self):
        """There is at least one thread."""
        with pytest.raises(
            ConfigError, match=r"^model 'm' has the parameter NUM_THREADS '0', which must be at least 1$"
        ):
            options(NUM_THREADS="0")


class TestFiles:
    @pytest.mark.parametrize(
        ("names", "kind"),
        [
            (["m/data.pkl", "m/code/__torch__.py", "m/constants.pkl"], TORCHSCRIPT),
            (["m/archive_format", "m/models/model.json", "m/data/weights/weight_0"], EXPORTED),
            (["m/archive_format", "m/data/aotinductor/model/x.so"], AOT_INDUCTOR),
            (["m/data.pkl", "m/data/0"], WEIGHTS),
        ],
    )
    def test_archives(self, names, kind, tmp_path):
        """The names in an archive say what it is."""
        assert kind_of_names(names) == kind
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for name in names:
                archive.writestr(name, pickle.dumps({}) if name.endswith("data.pkl") else "")
        (tmp_path / "file").write_bytes(made.getvalue())
        assert kind_of(str(tmp_path / "file")) == kind

    def test_other_files(self, tmp_path):
        """What is no archive may have weights, if it is a pickle at all."""
        for content, kind in ((b"\x80\x02", WEIGHTS), (b"PK\x03\x04 cut off", UNKNOWN), (b"", UNKNOWN)):
            (tmp_path / "file").write_bytes(content)
            assert kind_of(str(tmp_path / "file")) == kind
        with zipfile.ZipFile(tmp_path / "file", "w") as archive:
            archive.writestr("document.xml", "")
        assert kind_of(str(tmp_path / "file")) == UNKNOWN

    @pytest.mark.parametrize(
        ("pickled", "kind"), [({"weight": 1}, WEIGHTS), (collections.OrderedDict(), WEIGHTS), (Options, PICKLE)]
    )
    def test_pickles(self, tmp_path, pickled, kind):
        """Weights consist of a few classes, of which other pickles have more."""
        with zipfile.ZipFile(tmp_path / "file", "w") as archive:
            archive.writestr("m/data.pkl", pickle.dumps(pickled, protocol=2))
        assert kind_of(str(tmp_path / "file")) == kind


class TestTensors:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch", reason="torch is not installed (pip install torch)")

    def test_inputs_are_views(self, torch):
        """A tensor on the CPU has the memory of the request."""
        array = np.arange(4, dtype=np.int16)
        arrays = TorchArrays(torch, torch.device("cpu"))
        read = arrays.read(pb_utils.Tensor("X", array))
        made = arrays.join([read])
        assert (made.data_ptr(), made.dtype) == (array.ctypes.data, torch.int16)
        assert arrays.join([read, read]).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]

    def test_bf16(self, torch):
        """BF16, which numpy does not have, goes in and out."""
        arrays = TorchArrays(torch, torch.device("cpu"))
        given = pb_utils.Tensor.from_dlpack("X", torch.tensor([1.5, -3], dtype=torch.bfloat16))
        made = arrays.join([arrays.read(given)])
        assert made.dtype == torch.bfloat16
        assert arrays.join([made, made]).shape == (4,)
        told = arrays.write("Y", arrays.finish(made * 2))
        assert (told.name(), told.triton_dtype(), told.shape()) == ("Y", 14, [2])
        assert torch.from_dlpack(told).tolist() == [3, -6]

    def test_outputs(self, torch):
        """Gradients are left behind, and a scalar gets a dimension."""
        arrays = TorchArrays(torch, None)
        ones = arrays.finish(torch.ones(2, 3, requires_grad=True))
        assert arrays.write("Y", ones[1:]).as_numpy().tolist() == [[1, 1, 1]]
        for scalar in (torch.tensor(7), torch.tensor(7, dtype=torch.bfloat16)):
            assert arrays.write("Y", arrays.finish(scalar)).shape() == [1]

    def test_texts(self, torch):
        """BYTES are lists of str for a model, and a list of str is BYTES."""
        arrays = TorchArrays(torch, None)
        array = arrays.read(pb_utils.Tensor("X", np.array([b"a", "\u00e9".encode()], object)))
        assert to_model(arrays.join([array, array]), "X") == ["a", "\u00e9"] * 2
        with pytest.raises(ValueError, match=r"^input 'X' has an element that is not valid UTF-8"):
            to_model(np.array([b"\xff"], object), "X")
        assert arrays.write("Y", arrays.finish(from_model(["a", "b"], TEXTS, torch.Tensor))).shape() == [2]
        assert arrays.write("Y", arrays.finish(from_model([], TEXTS, torch.Tensor))).shape() == [0]

    @pytest.mark.parametrize(("value", "kind"), [(3, "int"), ([3], "list")])
    def test_no_tensors(self, torch, value, kind):
        """The message says what the model returned."""
        message = f"^the model returned {kind} as 'Y', which must be a tensor or a list of str$"
        with pytest.raises(ValueError, match=message):
            from_model(value, TEXTS, torch.Tensor)

    def test_empty_lists(self, torch):
        """A list without elements is one of texts only where the configuration says so."""
        with pytest.raises(ValueError, match=r"^the model returned list as 'Y', which must be a tensor"):
            from_model([], TensorSpec("Y", "TYPE_FP32", (2,)), torch.Tensor)

    @pytest.mark.parametrize(
        ("datatype", "dtype", "found"),
        [("TYPE_INT64", "float32", "TYPE_FP32"), ("TYPE_FP32", "complex64", "TYPE_INVALID")],
    )
    def test_other_datatypes(self, torch, datatype, dtype, found):
        """An output of another datatype than that of the configuration is refused, in Triton's words."""
        value = torch.ones(2, dtype=getattr(torch, dtype))
        message = f"^configuration expects datatype {datatype} for output 'Y', model provides {found}$"
        with pytest.raises(ValueError, match=message):
            from_model(value, TensorSpec("Y", datatype, (2,)), torch.Tensor)
        right = torch.ones(2, dtype=torch.bfloat16)
        assert from_model(right, TensorSpec("Y", "TYPE_BF16", (2,)), torch.Tensor) is right
