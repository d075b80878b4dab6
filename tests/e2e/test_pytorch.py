# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "pytorch": all files of PyTorch by the Python package torch, and their custom operations."""

import fcntl
import shutil
import subprocess
import sys
import warnings
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from pyruntime.backends.toolkit.threads import usable_cores

from .harness.operations import CustomOperations, libraries

torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

LENIENT = ("--exit-on-error=false", "--strict-readiness=false")
BACKEND = 'backend: "pytorch"\n'
TENSORS = (
    'input {{ name: "{}" data_type: TYPE_FP32 dims: [ 3 ] }} output {{ name: "{}" data_type: TYPE_FP32 dims: [ 3 ] }}\n'
)
CUSTOM = """
import torch

class Scaling(torch.nn.Module):
    def forward(self, x):
        return torch.ops.test.scale(x)
"""
# Arguments are a library and the file to save. The operation in it is the library's, whichever is there when it runs.
SAVE = {
    ".pt": """
import sys
torch.ops.load_library(sys.argv[1])
torch.jit.script(Scaling()).save(sys.argv[2])
""",
    ".pt2": """
import sys
torch.ops.load_library(sys.argv[1])
rows = torch.export.Dim("rows")
torch.export.save(torch.export.export(Scaling(), (torch.ones(2, 3),), dynamic_shapes=({0: rows},)), sys.argv[2])
""",
}
THREADS = """
import torch

class Threads(torch.nn.Module):
    def forward(self, x):
        return x * torch.get_num_threads()
"""
CALLS = """
import torch

class Calls(torch.nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += len(x)
        return x * self.calls
"""
THREE_THREADS = 'parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "3" } }\n'
LINEAR = """
import torch

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return self.linear(x)
"""


class AddSub(torch.nn.Module):
    def forward(self, a, b):
        return a + b, a - b


class Named(torch.nn.Module):
    def forward(self, a, b):
        return {"sum": a + b, "difference": a - b}


def exported(module, most=None):
    rows = torch.export.Dim("rows", max=most)
    # Two tensors: one that is passed twice would be one input.
    return torch.export.export(module, (torch.ones(2, 3), torch.ones(2, 3)), dynamic_shapes=({0: rows}, {0: rows}))


def add_sub_config(*inputs, outputs=("OUTPUT__0", "OUTPUT__1"), batch=4):
    tensor = '{} {{ name: "{}" data_type: TYPE_FP32 dims: [ 3 ] }}\n'
    tensors = [tensor.format("input", name) for name in inputs] + [tensor.format("output", name) for name in outputs]
    return BACKEND + f"max_batch_size: {batch}\n" + "".join(tensors)


def reasons(server):
    with closing(server.client()) as client:
        return {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}


def answers(server, name, inputs=("INPUT__0", "INPUT__1"), outputs=("OUTPUT__0", "OUTPUT__1")):
    """The values of both outputs for 5 and 3."""
    arrays = {each: np.full((1, 3), value, np.float32) for each, value in zip(inputs, (5, 3), strict=True)}
    answer = server.infer(name, arrays)
    return [answer.as_numpy(each).tolist()[0][0] for each in outputs]


def test_torchscript(serve, model):
    """The names of inputs have an index, or are those of arguments, or the order of the configuration counts."""
    configs = {
        "indexed": add_sub_config("INPUT__1", "INPUT__0"),
        "named": add_sub_config("b", "a", outputs=("OUTPUT__1", "OUTPUT__0")),
        "ordered": add_sub_config("first", "second", outputs=("sum", "difference")),
    }
    for name, config in configs.items():
        torch.jit.script(AddSub()).save(model(name, None, config) / "1" / "model.pt")
    server = serve()
    with closing(server.client()) as client:
        config = client.get_model_config("indexed")
    assert (config["platform"], config["default_model_filename"]) == ("pytorch_libtorch", "model.pt")
    assert answers(server, "indexed") == [8, 2]
    assert answers(server, "named", ("a", "b")) == [8, 2]
    assert answers(server, "ordered", ("first", "second"), ("sum", "difference")) == [8, 2]


def test_torchscript_of_dicts_and_texts(serve, model):
    """A model may take all inputs as a dict, and lists of texts."""

    class Dictionary(torch.nn.Module):
        def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"OUT": x["A"] * x["B"]}

    class Texts(torch.nn.Module):
        def forward(self, texts: list[str]) -> list[str]:
            return [text.upper() for text in texts]

    folder = model("dict", None, add_sub_config("A", "B", outputs=("OUT",)))
    torch.jit.script(Dictionary()).save(folder / "1" / "model.pt")
    strings = 'input { name: "INPUT__0" data_type: TYPE_STRING dims: [ -1 ] }\n'
    folder = model("texts", None, BACKEND + strings + strings.replace("input", "output").replace("INPUT", "OUTPUT"))
    torch.jit.script(Texts()).save(folder / "1" / "model.pt")
    server = serve()
    assert answers(server, "dict", ("A", "B"), ("OUT",)) == [15]
    answer = server.infer("texts", {"INPUT__0": np.array(["a", "\u00e9b"], object)}).as_numpy("OUTPUT__0")
    assert [each.decode() for each in answer] == ["A", "\u00e9B"]  # TorchScript knows the letters of ASCII only
    _, message = server.refusal("texts", {"INPUT__0": np.array([b"\xff"], object)})
    assert message == "input 'INPUT__0' has an element that is not valid UTF-8, which str of Python must be"


def test_outputs_of_another_datatype(serve, model):
    """An output that is not of the configured datatype is refused, as in Triton."""
    config = add_sub_config("a", "b").replace(
        'name: "OUTPUT__1" data_type: TYPE_FP32', 'name: "OUTPUT__1" data_type: TYPE_INT64'
    )
    torch.jit.script(AddSub()).save(model("other", None, config) / "1" / "model.pt")
    server = serve()
    rows = np.ones((1, 3), np.float32)
    _, message = server.refusal("other", {"a": rows, "b": rows})
    assert message == "configuration expects datatype TYPE_INT64 for output 'OUTPUT__1', model provides TYPE_FP32"


def test_exported_programs(serve, model):
    """A program of torch.export tells its inputs and outputs, so that no configuration is needed."""
    torch.export.save(exported(Named()), model("dict", None, None) / "1" / "model.pt2")
    server = serve()
    with closing(server.client()) as client:
        config = client.get_model_config("dict")
    assert (config["backend"], config["max_batch_size"], config["default_model_filename"]) == (
        "pytorch",
        4,
        "model.pt2",
    )
    assert [(each["name"], each["data_type"], each["dims"]) for each in (*config["input"], *config["output"])] == [
        (name, "TYPE_FP32", [3]) for name in ("a", "b", "sum", "difference")
    ]
    assert answers(server, "dict", ("a", "b"), ("difference", "sum")) == [2, 8]


class Sizes(torch.nn.Module):
    def forward(self, a, b):
        return a + b, a.shape[0], a - b, 7


def test_limits_of_exported_programs(serve, model):
    """Batches are no larger than the bounds of a program, and results that are no tensors are no outputs."""
    save = torch.export.save
    save(exported(Sizes(), most=3), model("bounded", None, None) / "1" / "model.pt2")
    config = add_sub_config("a", "b", outputs=("OUTPUT__0", "OUTPUT__2"), batch=8)
    save(exported(Sizes(), most=3), model("more", None, config) / "1" / "model.pt2")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        config = client.get_model_config("bounded")
    assert (config["max_batch_size"], [each["name"] for each in config["output"]]) == (3, ["OUTPUT__0", "OUTPUT__2"])
    assert answers(server, "bounded", ("a", "b"), ("OUTPUT__0", "OUTPUT__2")) == [8, 2]
    expected = "model 'more' has max_batch_size 8, and the largest batch that its program was exported for is 3"
    assert expected in reasons(server)["more"]


def test_packages_of_aotinductor(serve, model):
    """A compiled package is called by position."""
    folder = Path(__file__).resolve().parents[2] / "build" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"add_sub-{torch.__version__}.pt2"
    with open(folder / "aotinductor.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not package.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                unfinished = torch._inductor.aoti_compile_and_package(
                    exported(AddSub()), package_path=str(folder / "unfinished.pt2")
                )
            Path(unfinished).rename(package)
    shutil.copy(package, model("compiled", None, add_sub_config("INPUT__0", "INPUT__1")) / "1" / "model.pt2")
    assert answers(serve(), "compiled") == [8, 2]


class TestModules:
    WEIGHTS = torch.eye(3) * 2

    def test_weights(self, serve, model):
        """model.py has the module, a file beside it the weights: of safetensors, or a state_dict of torch.

        The same server shows the threads of instances, and the samples of model_warmup.
        """
        save = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
        config = BACKEND + "max_batch_size: 4\n" + TENSORS.format("x", "OUTPUT__0")
        for name, more in (("safe", ""), ("state", ""), ("runtime", 'runtime: "model.py"\n')):
            folder = model(name, None, config + more)
            (folder / "1" / "model.py").write_text(LINEAR)
            if name == "safe":
                save({"linear.weight": self.WEIGHTS}, folder / "1" / "model.safetensors")
            else:
                torch.save({"linear.weight": self.WEIGHTS}, folder / "1" / "model.pt")
        counts = {count: f"instance_group {{ kind: KIND_CPU count: {count} }}\n" for count in (1, 2)}
        threads = {"one": counts[1], "two": counts[2], "told": counts[2] + THREE_THREADS}
        for name, more in threads.items():
            (model(name, None, config + more) / "1" / "model.py").write_text(THREADS)
        sample = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }'
        warm = f'model_warmup {{ name: "s" batch_size: 2 count: 3 {sample} }}\n'
        (model("warm", None, config + counts[1] + warm) / "1" / "model.py").write_text(CALLS)
        server = serve()
        # The module has executed the sample of two rows three times, before its first request.
        assert server.infer("warm", {"x": np.ones((1, 3), np.float32)}).as_numpy("OUTPUT__0").tolist() == [[7, 7, 7]]
        for name in ("safe", "state", "runtime"):
            answer = server.infer(name, {"x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}).as_numpy("OUTPUT__0")
            assert answer.tolist() == [[2, 4, 6], [8, 10, 12]]
        # The cores are divided among the instances of a model, unless a parameter says otherwise.
        found = [server.infer(name, {"x": np.ones((1, 3), np.float32)}).as_numpy("OUTPUT__0")[0][0] for name in threads]
        assert found == [usable_cores(), max(1, usable_cores() // 2), 3]

    def test_pickles(self, serve, model):
        """A file of weights that would run code is refused; so are weights without a module."""
        config = BACKEND + TENSORS.format("x", "OUTPUT__0")
        folder = model("pickle", None, config)
        (folder / "1" / "model.py").write_text(LINEAR)
        torch.save(AddSub(), folder / "1" / "model.pt")
        torch.save({"linear.weight": self.WEIGHTS}, model("alone", None, config) / "1" / "model.pt")
        (model("empty", None, config) / "1" / "model.py").write_text("import torch\n")
        found = reasons(serve(*LENIENT))
        assert "cannot be loaded as weights: UnpicklingError: Weights only load failed" in found["pickle"]
        assert "has weights only, so that model.py with their torch.nn.Module must be next to it" in found["alone"]
        assert "defines no class that is derived from torch.nn.Module" in found["empty"]


def test_what_cannot_be_loaded(serve, model):
    """The message says what is missing and what to do."""
    torch.jit.script(AddSub()).save(model("bare", None, None) / "1" / "model.pt")
    (model("broken", None, None) / "1" / "model.pt2").write_bytes(b"no archive")
    torch.save(AddSub(), model("module", None, None) / "1" / "model.pt")
    torch.save(AddSub(), model("configured", None, add_sub_config("a", "b")) / "1" / "model.pt")
    torch.save({"weight": torch.ones(3)}, model("state", None, None) / "1" / "model.pt")
    threads = 'parameters { key: "NUM_THREADS" value { string_value: "0" } }\n'
    torch.jit.script(AddSub()).save(model("threads", None, add_sub_config("a", "b") + threads) / "1" / "model.pt")
    model("nothing", None, add_sub_config("a", "b"))
    found = reasons(serve(*LENIENT))
    assert "does not tell the datatypes and shapes of its tensors" in found["bare"]
    assert "is no file of torch.export, torch.jit or torch.save: its end may be missing" in found["broken"]
    for name in ("module", "configured"):
        assert "is a pickle of torch.save, which has objects but not the code of their classes" in found[name]
    assert "has weights only, so that model.py with their torch.nn.Module must be next to it" in found["state"]
    assert "has the parameter NUM_THREADS '0', which must be at least 1" in found["threads"]
    assert "its version folder needs model.pt or model.pt2 or model.py" in found["nothing"]


class TestCustomOperations(CustomOperations):
    FRAMEWORK = f"torch {torch.__version__}"
    IN = "x"
    OUT = "OUTPUT__0"
    CONFIG = BACKEND + "max_batch_size: 4\ninstance_group { kind: KIND_CPU }\n" + TENSORS.format("x", "OUTPUT__0")

    @pytest.fixture
    def compile_op(self, compile_library):
        """`compile_op(factor)`: the path of a library with the operation test::scale."""
        from torch.utils.cpp_extension import include_paths, library_paths

        options = [option for path in include_paths() for option in ("-isystem", path)]
        options += [option for path in library_paths() for option in (f"-L{path}", "-Wl,--no-as-needed")]
        options += ["-lc10", "-ltorch_cpu", "-ltorch"]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        return lambda factor: compile_library("torch_custom_op.cc", "-std=c++20", abi, f"-DFACTOR={factor}", *options)

    def test_a_library_of_another_framework_says_what_it_is(self, model, serve, compile_library):
        """torch loads it without an error, and no operation is there."""
        library = compile_library("onnx_custom_op.cc", "-DFACTOR=2")
        folder = model("m", None, self.CONFIG + libraries(library))
        (folder / "1" / "model.py").write_text(CUSTOM)
        assert (
            f"model 'm': the library '{library}' has custom operations for ONNX Runtime, by its function "
            "RegisterCustomOps, and the model is one of PyTorch: name a library that was built for that"
        ) in reasons(serve(*LENIENT))["m"]

    @pytest.fixture(params=["model.py", "model.pt", "model.pt2"])
    def scaling(self, request, model, compile_op, tmp_path):
        """`scaling(name, *libraries)`: the folder of a model that executes test::scale, as code and as both formats."""
        saved = tmp_path / "saved" / request.param
        saved.parent.mkdir()
        if saved.suffix == ".py":
            saved.write_text(CUSTOM)
        else:
            # In a process of its own: this one would have the operation for all later tests.
            script = tmp_path / "save.py"  # torch.jit.script reads the code in it
            script.write_text(CUSTOM + SAVE[saved.suffix])
            subprocess.run([sys.executable, script, compile_op(2), saved], check=True, capture_output=True)

        def write(name, *paths):
            folder = model(name, None, self.CONFIG + (libraries(*paths) if paths else ""))
            shutil.copy(saved, folder / "1")
            return folder

        return write

    def test_programs_without_their_library(self, serve, model, compile_op):
        """The message names the operations of TorchScript and of an exported program, and model_operations."""
        with exporting(compile_op(2)) as folder:
            for name, file, config in (("script", "model.pt", self.CONFIG), ("exported", "model.pt2", None)):
                shutil.copy(folder / file, model(name, None, config) / "1" / file)
            found = reasons(serve(*LENIENT))
        for name in ("script", "exported"):
            assert "has custom operations that no library registers: test::scale. Name their libraries" in found[name]


EXPORTING = """
import sys, torch

torch.ops.load_library(sys.argv[1])

class Scaling(torch.nn.Module):
    def forward(self, x):
        return torch.ops.test.scale(x)

torch.jit.script(Scaling()).save(sys.argv[2] + "/model.pt")
torch.export.save(torch.export.export(Scaling(), (torch.ones(2, 3),)), sys.argv[2] + "/model.pt2")
"""


@contextmanager
def exporting(library):
    """A folder with models that execute test::scale. Another process makes them: libraries are never unloaded."""
    with TemporaryDirectory() as folder:
        # TorchScript reads the code of a class from its file.
        script = Path(folder, "export.py")
        script.write_text(EXPORTING)
        subprocess.run([sys.executable, "-W", "ignore", str(script), str(library), folder], check=True)
        yield Path(folder)
