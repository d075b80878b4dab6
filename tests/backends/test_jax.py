# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Exported JAX functions: their files, tensors, devices and threads. The server is in tests/e2e."""

import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

from pyruntime.backends.jax.contents import read_contents
from pyruntime.backends.jax.programs import find_device
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError, LoadError

jax = pytest.importorskip("jax", reason="jax is not installed (pip install jax)")
export = pytest.importorskip("jax.export", reason="this jax has no jax.export (pip install -U jax)")

BACKEND = 'backend: "jax" instance_group { kind: KIND_CPU }\n'


def libraries(*paths):
    return "".join(f'model_operations {{ op_library_filename: "{path}" }}\n' for path in paths)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What the backend sets for its process stays in the test."""
    for name in ("NPROC", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def exported(tmp_path):
    """`exported(function, *arguments, config=None, **named)`: the folder of a model; the last call's, there is one."""

    def write(function, *arguments, config=None, platforms=("cpu",), calls=(), **named):
        (tmp_path / "m" / "1").mkdir(parents=True)
        checks = [export.DisabledSafetyCheck.custom_call(target) for target in calls]
        made = export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(*arguments, **named)
        (tmp_path / "m" / "1" / "model.jax").write_bytes(made.serialize())
        if config is not None:
            (tmp_path / "m" / "config.pbtxt").write_text(config)
        return tmp_path / "m"

    return write


def calling(target):
    """A function of a custom call."""
    return lambda a: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(a.shape, a.dtype))(a)


def add_sub(a, b):
    return {"sum": a + b, "difference": a - b}


def test_a_batch_of_a_file_alone(exported, load_model):
    """Names, datatypes, shapes and batching come from the file; a batch is one call, with a power of two of rows."""
    sizes = []

    def spy(arrays):
        sizes.append(arrays[0].shape[0])
        return call(arrays)

    rows = jax.ShapeDtypeStruct((*export.symbolic_shape("rows"), 3), np.float32)
    model = load_model(exported(add_sub, a=rows, b=rows))
    described = [(each["name"], each["dims"]) for each in (*model.config["input"], *model.config["output"])]
    assert described == [(name, [3]) for name in ("a", "b", "difference", "sum")]
    assert (model.config["backend"], model.config["max_batch_size"]) == ("jax", 4)
    call, model.instance._call = model.instance._call, spy
    three, two = np.ones((1, 3), np.float32), np.full((2, 3), 2, np.float32)
    first, second = model.execute([{"a": three, "b": three}, {"a": two, "b": two}])
    assert (first["sum"].tolist(), second["sum"].tolist()) == ([[2] * 3], [[4] * 3] * 2)
    assert second["difference"].tolist() == [[0] * 3] * 2
    assert sizes == [4]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, np.bool_, np.float16])
def test_datatypes(exported, load_model, dtype):
    """All numbers pass as they are, also those of 64 bits. A scalar has one dimension."""
    jax.config.update("jax_enable_x64", True)
    model = load_model(exported(lambda a: (a, a.reshape(-1)[0]), jax.ShapeDtypeStruct((2,), dtype)))
    result = model.infer({"INPUT__0": np.array([1, 0], dtype)})
    assert (result["OUTPUT__0"].dtype, result["OUTPUT__0"].tolist()) == (dtype, [1, 0])
    assert result["OUTPUT__1"].tolist() == [1]


def test_bf16(load_model, exported):
    """BF16, which numpy does not have, passes too."""
    import triton_python_backend_utils as pb_utils

    from pyruntime.backends.jax.model import JaxArrays

    arrays = JaxArrays(jax)
    array = np.asarray(jax.numpy.array([1.5, -2], jax.numpy.bfloat16))
    tensor = arrays.write("A", array)
    assert (tensor.triton_dtype(), tensor.shape()) == (14, [2])
    assert arrays.read(tensor).tolist() == [1.5, -2]
    assert arrays.write("A", array[0]).shape() == [1]
    assert arrays.read(pb_utils.Tensor("A", np.ones(2))).tolist() == [1, 1]


def test_an_input_that_is_missing(exported, load_model):
    """An input may be optional in a configuration, but not in an export."""
    tensor = '{} {{ name: "{}" data_type: TYPE_FP32 dims: [ 3 ] {} }}\n'
    config = BACKEND + tensor.format("input", "a", "") + tensor.format("input", "b", "optional: true")
    config += tensor.format("output", "sum", "")
    one = jax.ShapeDtypeStruct((3,), np.float32)
    model = load_model(exported(add_sub, a=one, b=one, config=config))
    result = model.execute([{"a": np.ones(3, np.float32)}])[0]
    assert "input 'b' must be given: an exported function has no optional arguments" in str(result.error)


class TestLoading:
    def refused(self, load_model, folder):
        with pytest.raises(LoadError) as caught:
            load_model(folder)
        return str(caught.value)

    def test_no_export(self, exported, load_model):
        """The message says what the file must have."""
        folder = exported(lambda a: a, jax.ShapeDtypeStruct((3,), np.float32))
        (folder / "1" / "model.jax").write_bytes(b"no export")
        message = self.refused(load_model, folder)
        assert f"cannot be loaded by jax {jax.__version__}, which takes what serialize() of jax.export" in message

    def test_another_platform(self, exported, load_model):
        """An export runs on the platforms that it was made for."""
        folder = exported(lambda a: a, jax.ShapeDtypeStruct((3,), np.float32), config=BACKEND, platforms=("cuda",))
        assert (
            "was exported for cuda, and its instance of kind KIND_CPU is on cpu: export it with platforms=['cpu']"
            in (self.refused(load_model, folder))
        )

    def test_no_device(self, exported, load_model):
        """A GPU that is not there is the configuration's fault."""
        if jax.default_backend() == "gpu":
            pytest.skip("there is a GPU here")
        with pytest.raises(ConfigError, match=r"of kind KIND_GPU, and jax \S+ finds no such device: install jax\[cuda"):
            find_device(jax, read_settings({"name": "m"}), None, "GPU", "0")

    def test_an_instance_uses_its_own_gpu_only(self):
        """jax would make a context on each GPU that it sees."""
        set_options = {}
        (device,) = devices = [SimpleNamespace(platform="gpu")]
        fake = SimpleNamespace(config=SimpleNamespace(update=set_options.__setitem__), devices=lambda kind: devices)
        exported = SimpleNamespace(platforms=("cuda",))
        assert find_device(fake, read_settings({"name": "m"}), exported, "GPU", "2") is device
        assert set_options == {"jax_cuda_visible_devices": "2"}
        jax.config.update("jax_cuda_visible_devices", "all")  # which jax knows; it is the default

    def test_a_type_that_cannot_be_served(self, exported, load_model):
        """Triton has no complex numbers."""
        folder = exported(lambda a: a, jax.ShapeDtypeStruct((3,), np.complex64))
        assert "has 'INPUT__0' of the type complex64, which cannot be served" in self.refused(load_model, folder)

    def test_threads(self, exported, load_model):
        """The threads are those of the parameter."""
        threads = 'parameters {{ key: "NUM_THREADS" value {{ string_value: "{}" }} }}\n'
        folder = exported(lambda a: a, jax.ShapeDtypeStruct((3,), np.float32), config=BACKEND + threads.format(3))
        load_model(folder)
        assert os.environ["NPROC"] == "3"
        (folder / "config.pbtxt").write_text(BACKEND + threads.format(0))
        assert "has the parameter NUM_THREADS '0', which must be at least 1" in self.refused(load_model, folder)


class TestCustomCalls:
    """More is in tests/e2e. Targets are registered for the whole process, so each test has one of its own."""

    THREE = jax.ShapeDtypeStruct((3,), np.float32)

    @pytest.fixture
    def library(self, compile_library):
        """A library whose function is test_scale."""
        return compile_library("jax_custom_op.cc", "-DFACTOR=2", "-isystem", jax.ffi.include_dir())

    def config(self, *paths, **targets):
        named = json.dumps(json.dumps(targets))
        return BACKEND + libraries(*paths) + f'parameters {{ key: "FFI_TARGETS" value {{ string_value: {named} }} }}\n'

    def test_a_target_of_another_name(self, exported, load_model, library):
        """The parameter names the function of a target."""
        config = self.config(library, **{"double it": "test_scale"})
        model = load_model(exported(calling("double it"), self.THREE, config=config, calls=["double it"]))
        assert model.infer({"INPUT__0": np.ones(3, np.float32)})["OUTPUT__0"].tolist() == [2, 2, 2]

    def test_libraries_without_the_function(self, exported, load_model, library):
        """The message names the functions, and the parameter that may name others."""
        folder = exported(calling("fold"), self.THREE, config=self.config(library), calls=["fold"])
        with pytest.raises(LoadError, match=r"has no function fold, by which jax \S+ calls .* parameter FFI_TARGETS"):
            load_model(folder)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [({"other": "f"}, "has the target 'other' in the parameter FFI_TARGETS, and its file calls fold"),
         ({"fold": 1}, "which must be a JSON object with the function for each target")],
    )  # fmt: skip
    def test_targets_that_are_refused(self, exported, load_model, targets, message):
        """Targets that the file does not call, and functions that are no names."""
        folder = exported(calling("fold"), self.THREE, config=self.config(**targets), calls=["fold"])
        with pytest.raises(LoadError, match=re.escape(message)):
            load_model(folder)

    def test_contents(self, exported):
        """The file tells its custom calls without jax."""
        folder = exported(calling("fold"), self.THREE, calls=["fold", "twist"])
        assert read_contents(str(folder / "1" / "model.jax")).custom == ["fold", "twist"]
