# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "tensorrt", with a stand-in for the packages tensorrt and cuda-python that has the same interface.

Its engines are files of JSON, and its GPU is memory of this process: each buffer may be read and written through the
addresses that the backend gives to the execution context, and only there.
"""

import ctypes
import enum
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from pyruntime.backends.tensorrt.engines import find_profile, rows_max
from pyruntime.runtime.settings import ServerSettings
from pyruntime.testing import InferenceError, LoadError, configuration, load_model

CONFIG = 'backend: "tensorrt"\n'


class DataType(enum.Enum):
    FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64 = range(9)


class Mode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class ILogger:
    Severity = enum.Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")


class Gpu:
    """Memory of a GPU and its stream: copies are made when the stream is waited for."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)
    cudaError_t = enum.IntEnum(
        "cudaError_t", {"cudaSuccess": 0, "cudaErrorMemoryAllocation": 2, "cudaErrorNoDevice": 100}
    )

    def __init__(self):
        self.buffers = {}
        self.pending = []
        self.devices = 1
        self.freed = 0

    def cudaSetDevice(self, number):
        ok = number < self.devices
        return (self.cudaError_t.cudaSuccess if ok else self.cudaError_t.cudaErrorNoDevice,)

    def cudaStreamCreate(self):
        return self.cudaError_t.cudaSuccess, 77

    def cudaMalloc(self, nbytes):
        buffer = ctypes.create_string_buffer(nbytes)
        self.buffers[ctypes.addressof(buffer)] = buffer
        return self.cudaError_t.cudaSuccess, ctypes.addressof(buffer)

    def cudaFree(self, address):
        del self.buffers[address]
        self.freed += 1
        return (self.cudaError_t.cudaSuccess,)

    def cudaMemcpyAsync(self, target, source, nbytes, kind, stream):
        device = target if kind == 1 else source
        assert nbytes <= len(self.buffers[device])
        assert stream == 77
        self.pending.append(lambda: ctypes.memmove(target, source, nbytes))
        return (self.cudaError_t.cudaSuccess,)

    def cudaStreamSynchronize(self, stream):
        for act in self.pending:
            act()
        self.pending.clear()
        return (self.cudaError_t.cudaSuccess,)


class Engine:
    """An engine of JSON: `tensors` of name, mode, datatype and shape, `profiles`, and the `factor` of its outputs."""

    def __init__(self, gpu, plan):
        self.gpu, self.plan = gpu, plan
        self.tensors = {each["name"]: each for each in plan["tensors"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(plan["profiles"])

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return Mode[self.tensors[name]["mode"]]

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name]["type"]]

    def get_tensor_shape(self, name):
        return self.tensors[name]["shape"]

    def get_tensor_profile_shape(self, name, index):
        return self.plan["profiles"][index][name]

    def is_shape_inference_io(self, name):
        return False

    def create_execution_context(self, strategy="default"):
        self.strategy = strategy
        return None if self.plan.get("no_memory") else Context(self)


class Context:
    """Each output is the sum of all inputs, multiplied by the factor of the engine."""

    def __init__(self, engine):
        self.engine, self.shapes, self.addresses, self.profile = engine, {}, {}, 0
        self.used = []

    def set_optimization_profile_async(self, profile, stream):
        self.profile = profile
        return True

    def set_input_shape(self, name, shape):
        least, _, most = self.engine.plan["profiles"][self.profile][name]
        self.shapes[name] = shape
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def get_tensor_shape(self, name):
        rows = next(iter(self.shapes.values()))[0]
        return [rows if size == -1 else size for size in self.engine.tensors[name]["shape"]]

    def set_tensor_address(self, name, address):
        self.addresses[name] = address

    def execute_async_v3(self, stream):
        if set(self.addresses) != set(self.engine.tensors):
            return False
        self.engine.gpu.pending.append(self.execute)
        return True

    def execute(self):
        total = sum(self.array(name) for name in self.shapes) * self.engine.plan["factor"]
        self.engine.plan["executed"] = [*self.engine.plan.get("executed", ()), (self.profile, len(total))]
        for name, tensor in self.engine.tensors.items():
            if tensor["mode"] == "OUTPUT":
                self.array(name)[...] = total

    def array(self, name):
        shape = self.get_tensor_shape(name) if name not in self.shapes else self.shapes[name]
        data = (ctypes.c_float * int(np.prod(shape))).from_address(self.addresses[name])
        return np.frombuffer(data, np.float32).reshape(shape)


@pytest.fixture
def stand_in(monkeypatch):
    """The packages; `plugins` are the loaded libraries, `gpu` the memory, `engines` all engines."""
    gpu = Gpu()
    trt = ModuleType("tensorrt")
    trt.__version__ = "10.9.0"
    trt.ILogger, trt.TensorIOMode, trt.DataType = ILogger, Mode, DataType
    trt.ExecutionContextAllocationStrategy = enum.Enum("Strategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED")
    trt.plugins, trt.gpu, trt.engines = [], gpu, []

    def load_library(path):
        if "broken" in path:
            trt.log.log(
                ILogger.Severity.ERROR, f"Unable to open library: {path} due to {path}: undefined symbol: _ZN8nvinfer1"
            )
            return None
        trt.plugins.append(path)
        return object()

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, log):
            self.log = log

        def deserialize_cuda_engine(self, data):
            try:
                plan = json.loads(data)
            except ValueError:
                self.log.log(ILogger.Severity.ERROR, "Serialization assertion failed: version mismatch")
                return None
            if set(plan.get("plugins", ())) - {path.rpartition("/")[2] for path in trt.plugins}:
                self.log.log(ILogger.Severity.ERROR, "could not find plugin Scale version 1")
                return None
            if plan.get("lean") and not self.engine_host_code_allowed:
                self.log.log(ILogger.Severity.ERROR, "host code is not allowed")
                return None
            trt.engines.append(Engine(gpu, plan))
            return trt.engines[-1]

    trt.init_libnvinfer_plugins = lambda log, namespace: setattr(trt, "log", log)
    trt.get_plugin_registry = lambda: SimpleNamespace(load_library=load_library)
    trt.Runtime = Runtime
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", gpu)
    return trt


def tensor(name, mode, shape=(-1, 3), kind="FLOAT"):
    return {"name": name, "mode": mode, "type": kind, "shape": list(shape)}


def profile(least, most, names=("A", "B")):
    return {name: [[least, 3], [most, 3], [most, 3]] for name in names}


@pytest.fixture
def folder(tmp_path):
    """`folder(config=CONFIG, **plan)`: the folder of a model with this engine."""

    def write(config=CONFIG, **changes):
        plan = {
            "tensors": [tensor("A", "INPUT"), tensor("B", "INPUT"), tensor("SUM", "OUTPUT"), tensor("TOO", "OUTPUT")],
            "profiles": [profile(1, 2), profile(2, 8)],
            "factor": 1,
        }
        made = tmp_path / "engine"
        (made / "1").mkdir(parents=True)
        (made / "config.pbtxt").write_text(config)
        (made / "1" / "model.plan").write_text(json.dumps(plan | changes))
        return made

    return write


def rows(*values):
    return np.array([[value] * 3 for value in values], np.float32)


def test_inference(stand_in, folder):
    """The configuration is that of the engine; inputs reach the GPU, and the outputs that are wanted come back."""
    with load_model(folder("")) as model:
        assert model.config["max_batch_size"] == 4
        assert [each["name"] for each in model.config["input"]] == ["A", "B"]
        result = model.infer({"A": rows(1), "B": rows(2)})
        assert result["SUM"].tolist() == [[3, 3, 3]]
        assert model.infer({"A": rows(5), "B": rows(2)}, requested_outputs=["TOO"])["TOO"].tolist() == [[7, 7, 7]]


def test_states(stand_in, folder):
    """The state of a sequence is an input and an output of the engine, and neither for clients."""
    state = 'sequence_batching { state { input_name: "B" output_name: "TOO" data_type: TYPE_FP32 dims: [ 3 ] } }\n'
    with load_model(folder(CONFIG + state)) as model:
        assert [each["name"] for each in (*model.config["input"], *model.config["output"])] == ["A", "SUM"]
        result = model.infer({"A": rows(1), "B": rows(2)})
        assert (result["SUM"].tolist(), result["TOO"].tolist()) == ([[3, 3, 3]], [[3, 3, 3]])


def test_batches_and_profiles(stand_in, folder):
    """A batch is one execution, with the first profile that has its shape; buffers grow, and the old ones are freed."""
    with load_model(folder()) as model:
        for values in ((1,), (1, 2, 3), (4,)):
            requests = [{"A": rows(value), "B": rows(10)} for value in values]
            sums = [result["SUM"].tolist() for result in model.execute(requests)]
            assert sums == [[[value + 10] * 3] for value in values]
    assert stand_in.engines[-1].plan["executed"] == [(0, 1), (1, 3), (0, 1)]
    assert stand_in.gpu.freed == len(stand_in.gpu.buffers) == 4


def test_batches_that_no_profile_has(stand_in, folder):
    """The server's default is cut to the largest batch of a profile; a larger one that is configured is refused."""
    plan = {"profiles": [profile(1, 2)]}
    made = folder(**plan)
    with load_model(made) as model:
        assert model.config["max_batch_size"] == 2
    (made / "config.pbtxt").write_text(CONFIG + "max_batch_size: 8\n")
    with pytest.raises(LoadError, match="the largest batch of the optimization profiles of its engine is 2"):
        load_model(made)


def test_a_shape_tensor_is_that_of_one_request(stand_in, folder):
    inputs = (
        'input [ { name: "A" data_type: TYPE_FP32 dims: [ 3 ] is_shape_tensor: true }, '
        '{ name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ] max_batch_size: 4\n'
    )
    with pytest.raises(LoadError, match="model 'engine' has the shape tensor 'A' and batches, which is not supported"):
        load_model(folder(CONFIG + inputs))


def test_shapes_that_no_profile_has(stand_in, folder):
    """The request fails, and reads what the engine accepts."""
    with load_model(folder(profiles=[profile(2, 4)])) as model:
        expected = r"no optimization profile has the shapes 'A' \[1, 3\], .*'A' from \[2, 3\] to \[4, 3\]"
        with pytest.raises(InferenceError, match=expected):
            model.infer({"A": rows(1), "B": rows(1)})


def test_plugins(stand_in, folder):
    """Libraries are loaded in their order before the engine; without them the engine's error is shown."""
    made = folder(plugins=["first.so"])
    with pytest.raises(LoadError, match=r"TensorRT 10.9.0: could not find plugin Scale version 1\. An engine is for"):
        load_model(made)
    for name in ("first.so", "second.so"):
        (made / "1" / name).touch()
    libraries = 'model_operations { op_library_filename: "first.so" op_library_filename: "second.so" }\n'
    (made / "config.pbtxt").write_text(CONFIG + libraries)
    with load_model(made):
        pass
    assert stand_in.plugins[-2:] == [str(made / "1/first.so"), str(made / "1/second.so")]


def test_parameters(stand_in, folder):
    """A context allocates its memory as the parameter says; TensorRT's own default counts without it."""
    entry = 'parameters {{ key: "execution_context_allocation_strategy" value {{ string_value: "{}" }} }}\n'
    made = folder(CONFIG + entry.format("ON_PROFILE_CHANGE"))
    with load_model(made):
        assert stand_in.engines[-1].strategy.name == "ON_PROFILE_CHANGE"
    (made / "config.pbtxt").write_text(CONFIG)
    with load_model(made):
        assert stand_in.engines[-1].strategy == "default"
    (made / "config.pbtxt").write_text(CONFIG + entry.format("USER_MANAGED"))
    with pytest.raises(LoadError, match=r"_strategy 'USER_MANAGED', which must be STATIC or ON_PROFILE_CHANGE"):
        load_model(made)


def test_no_context(stand_in, folder):
    """An engine without room for a context is not loaded."""
    with pytest.raises(LoadError, match="TensorRT makes no execution context: it gives no reason"):
        load_model(folder(no_memory=True))


def test_options_of_the_server(stand_in, folder, monkeypatch):
    """Plugins for all engines come before those of the model; engines with code for the host must be allowed."""
    made = folder(CONFIG + 'model_operations { op_library_filename: "own.so" }\n', plugins=["all.so"], lean=True)
    (made / "own.so").touch()
    with pytest.raises(LoadError, match="host code is not allowed"):
        with_options(monkeypatch, made, plugins="/p/all.so")
    with with_options(monkeypatch, made, **{"plugins": "/p/all.so;/p/more.so", "version-compatible": "true"}):
        assert stand_in.plugins[-3:] == ["/p/all.so", "/p/more.so", str(made / "own.so")]
    with pytest.raises(LoadError, match="version-compatible is 'x', expected true or false"):
        with_options(monkeypatch, made, **{"version-compatible": "x"})


def with_options(monkeypatch, folder, **options):
    """A model that is loaded with these options of `--backend-config`."""
    settings = ServerSettings((), backend_config={"tensorrt": options})
    monkeypatch.setattr(configuration, "ServerSettings", lambda models: settings)
    return load_model(folder)


def test_a_plugin_of_another_version(stand_in, folder):
    """The message names the symbol that is missing, the library, and the version of TensorRT."""
    made = folder(CONFIG + 'model_operations { op_library_filename: "broken.so" }\n')
    (made / "broken.so").touch()
    with pytest.raises(LoadError, match=r"broken.so' needs the symbol '_ZN8nvinfer1', which TensorRT 10.9.0 of the"):
        load_model(made)


def test_what_cannot_be_served(stand_in, folder):
    """A datatype without arrays, an engine of another version, a GPU that does not exist."""
    tensors = [tensor("A", "INPUT"), tensor("B", "INPUT", kind="FP8"), tensor("SUM", "OUTPUT")]
    made = folder(tensors=tensors)
    with pytest.raises(LoadError, match="has 'B' of the type FP8, which cannot be served"):
        load_model(made)
    (made / "1" / "model.plan").write_bytes(b"no engine")
    with pytest.raises(LoadError, match=r"version mismatch\. An engine is for the version of TensorRT"):
        load_model(made)
    stand_in.gpu.devices = 0
    with pytest.raises(LoadError, match="cannot use the GPU 0: CUDA error 100: cudaErrorNoDevice"):
        load_model(
            made,
            config='backend: "tensorrt" input { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }\n'
            'output { name: "SUM" data_type: TYPE_FP32 dims: [ 3 ] }',
        )


def test_without_the_package(folder, monkeypatch):
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(LoadError, match="tensorrt"):
        load_model(folder())


def test_profiles():
    """The first one that has all shapes counts; the largest batch is that of the input that has the least."""
    profiles = [{"A": ((1, 3), (2, 3)), "B": ((1, 3), (4, 3))}, {"A": ((4, 3), (8, 3)), "B": ((1, 3), (8, 3))}]
    assert find_profile(profiles, {"A": (2, 3), "B": (2, 3)}) == 0
    assert find_profile(profiles, {"A": (5, 3), "B": (5, 3)}) == 1
    with pytest.raises(ValueError, match="no optimization profile has the shapes"):
        find_profile(profiles, {"A": (3, 3), "B": (3, 3)})
    assert rows_max(profiles) == 8
    assert rows_max([{"A": ((), ())}]) is None
