# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the backends of frameworks share: settings, files, threads, completion, messages. No framework is needed."""

import json
import sys
from types import SimpleNamespace

import pytest

from pyruntime.backends.toolkit.completion import check_tensors, complete, complete_config, is_complete
from pyruntime.backends.toolkit.devices import torch_device
from pyruntime.backends.toolkit.files import find_libraries, find_model_file, unloadable
from pyruntime.backends.toolkit.frameworks import environment, explain_library, import_framework
from pyruntime.backends.toolkit.settings import TensorSpec, read_settings, server_options
from pyruntime.backends.toolkit.threads import cores_of_quota, threads_per_instance, usable_cores
from pyruntime.utils.errors import ConfigError, LoadError


def settings(**fields):
    return read_settings({"name": "m", **fields})


def parameters(**values):
    return settings(parameters={name: {"string_value": value} for name, value in values.items()})


def tensor(name, *dims, datatype="TYPE_FP32"):
    return TensorSpec(name, datatype, dims)


def entry(name, dims, datatype="TYPE_FP32", **more):
    return {"name": name, "data_type": datatype, "dims": dims, **more}


def state(taken, made, dims, datatype="TYPE_FP32"):
    return {"input_name": taken, "output_name": made, "data_type": datatype, "dims": dims}


class TestSettings:
    def test_fields(self):
        """Every field is typed; a tensor has the shape that the model sees."""
        found = settings(
            max_batch_size=8,
            input=[entry("A", ["3"]), entry("B", [1], reshape={"shape": []})],
            output=[entry("C", [-1], "TYPE_STRING")],
            default_model_filename="m.onnx",
            model_operations={"op_library_filename": ["a.so", "b.so"]},
            instance_group=[{"count": 2, "gpus": [0, 1]}, {"count": 3}],
        )
        assert found.inputs == (tensor("A", 3), tensor("B"))
        assert found.outputs == (tensor("C", -1, datatype="TYPE_STRING"),)
        assert (found.max_batch_size, found.filename, found.libraries) == (8, "m.onnx", ("a.so", "b.so"))
        assert found.instance_count == 7

    def test_what_the_server_adds_for_sequences(self):
        """Controls and states are inputs besides those of clients; a state that is an output, too, is one output."""
        kinds = [{"bool_false_true": [False, True]}, {"fp32_false_true": [0, 1]}, {"data_type": "TYPE_UINT64"}]
        found = settings(
            input=[entry("A", [3])],
            output=[entry("B", [3])],
            sequence_batching={
                "control_input": [{"name": f"C{at}", "control": [kind]} for at, kind in enumerate(kinds)],
                "state": [state("S", "T", ["-1"]), state("U", "B", [3])],
            },
        )
        assert found.all_inputs == (
            tensor("A", 3),
            tensor("C0", 1, datatype="TYPE_BOOL"),
            tensor("C1", 1),
            tensor("C2", 1, datatype="TYPE_UINT64"),
            tensor("S", -1),
            tensor("U", 3),
        )
        assert found.all_outputs == (tensor("B", 3), tensor("T", -1))

    def test_integers(self):
        """A parameter is a text; an absent one is its default."""
        assert parameters(count="3").integer("count") == 3
        assert settings().integer("count", 5) == 5
        with pytest.raises(ConfigError, match=r"^model 'm' has the parameter count 'x', which must be an integer$"):
            parameters(count="x").integer("count")

    @pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("1", True), ("false", False), (" 0 ", False)])
    def test_booleans(self, text, value):
        """A flag has any case."""
        assert parameters(flag=text).boolean("flag") is value
        assert settings().boolean("flag", value) is value

    @pytest.mark.parametrize(("value", "reads"), [(None, False), ("yes", False), ("no", True)])
    def test_whether_an_instance_on_a_gpu_has_its_inputs_there(self, value, reads):
        parameters = {} if value is None else {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": value}}
        assert read_settings({"parameters": parameters}).reads_gpu is reads

    def test_other_booleans(self):
        """Other texts are refused."""
        with pytest.raises(ConfigError, match=r"^model 'm' has the parameter flag 'yes', which must be true or false$"):
            parameters(flag="yes").boolean("flag")

    def test_server_options(self):
        """The options of the server are those of the command line."""
        assert server_options({"command_line": '{"cmdline": {"a": "b"}}'}) == {"a": "b"}


class TestFiles:
    def test_the_default_names(self, tmp_path):
        """The first name that exists counts, unless the configuration has another one."""
        for name in ("b", "own"):
            (tmp_path / name).write_text("a model")
        assert find_model_file(settings(), str(tmp_path), ["a", "b"]) == str(tmp_path / "b")
        assert find_model_file(settings(default_model_filename="a"), str(tmp_path), ["a", "b"]) == str(tmp_path / "b")
        named = settings(default_model_filename="own")
        assert find_model_file(named, str(tmp_path), ["a", "b"]) == str(tmp_path / "own")

    def test_no_file(self, tmp_path):
        """A configured name is never replaced by a default one."""
        (tmp_path / "a").touch()
        with pytest.raises(LoadError, match=r"^unable to find '.*/own' for model 'm': its version folder needs own; "):
            find_model_file(settings(default_model_filename="own"), str(tmp_path), ["a"])
        with pytest.raises(
            LoadError, match=r"needs c or d; default_model_filename in config.pbtxt names another file$"
        ):
            find_model_file(settings(), str(tmp_path), ["c", "d"])

    def test_a_file_that_no_framework_can_read_is_refused_before_it_is_read(self, tmp_path):
        """Also the one in a folder, by which frameworks know it."""
        pointer = "version https://git-lfs.github.com/spec/v1\n"
        (tmp_path / "a").write_text(pointer)
        for folder, member in (("b", "b"), ("c", "saved_model.pb")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / member).write_text(pointer)
            (tmp_path / folder / "other").write_text(pointer)
        for name, file in (("a", "a"), ("b", "b/b"), ("c", "c/saved_model.pb")):
            with pytest.raises(LoadError, match=f"^model 'm': '{tmp_path / file}' is a pointer of Git LFS"):
                find_model_file(settings(), str(tmp_path), [name])
        (tmp_path / "b" / "b").write_text("a model")
        assert find_model_file(settings(), str(tmp_path), ["b"]) == str(tmp_path / "b")

    def test_what_lies_beside_a_model_that_does_not_load_may_be_the_reason(self, tmp_path):
        """Git has left a pointer in the place of its weights. An id of a hub has no folder."""
        path = tmp_path / "model.onnx"
        path.write_text("a model")
        said = f"model 'm': '{path}' cannot be loaded: no weights"
        assert str(unloadable("m", str(path), "no weights")) == said
        (tmp_path / "weights").mkdir()
        weights = tmp_path / "weights" / "w.bin"
        weights.write_text("version https://git-lfs.github.com/spec/v1\n")
        assert str(unloadable("m", str(path), "no weights")).startswith(
            f"{said}. Beside it '{weights}' is a pointer of"
        )
        part = tmp_path / "part.safetensors"
        part.write_bytes(b"\2\0\0")
        assert str(unloadable("m", str(tmp_path), "no weights")).endswith(
            f"Beside it '{part}' is cut off: it was not written or copied to its end, or is no file of safetensors"
        )
        assert str(unloadable("m", "any/id", "no weights")) == "model 'm': 'any/id' cannot be loaded: no weights"

    def test_libraries(self, tmp_path):
        """A library is in the version's folder, else in the model's folder, or has an absolute path. Order is kept."""
        version = tmp_path / "m" / "1"
        version.mkdir(parents=True)
        for path in (version / "a.so", tmp_path / "m" / "a.so", tmp_path / "m" / "b.so", tmp_path / "c.so"):
            path.touch()
        told = ("b.so", str(tmp_path / "c.so"), "a.so")
        found = find_libraries(settings(model_operations={"op_library_filename": told}), str(version))
        assert found == [str(tmp_path / "m" / "b.so"), str(tmp_path / "c.so"), str(version / "a.so")]
        with pytest.raises(LoadError, match=r"^model 'm' has the op_library_filename 'd.so', which does not exist: "):
            find_libraries(settings(model_operations={"op_library_filename": ["d.so"]}), str(version))


class TestThreads:
    @pytest.mark.parametrize(
        ("instances", "cores", "threads"), [(1, 8, 8), (2, 8, 4), (3, 8, 2), (16, 8, 1), (0, 4, 4)]
    )
    def test_division(self, instances, cores, threads):
        """All instances together have no more threads than there are cores, but each has one."""
        assert threads_per_instance(instances, cores) == threads

    @pytest.mark.parametrize(
        ("quota", "cores"), [("max 100000\n", 8), ("200000 100000\n", 2), ("150000 100000", 2), ("1000 100000", 1)]
    )
    def test_quota(self, quota, cores):
        """A quota is rounded up; it gives no more cores than there are."""
        assert cores_of_quota(quota, 8) == cores
        assert cores_of_quota("9900000 100000", 8) == 8
        assert cores_of_quota("no numbers", 8) == 8

    def test_of_this_process(self, tmp_path):
        """Without a cgroup the affinity decides."""
        (tmp_path / "cpu.max").write_text("100000 100000\n")
        assert usable_cores(str(tmp_path / "cpu.max")) == 1
        assert usable_cores(str(tmp_path / "none")) >= 1


class TestDevices:
    @pytest.fixture(autouse=True)
    def nothing_is_current(self):
        self.current = []

    def torch(self, has_gpu):
        return SimpleNamespace(
            __version__="2.6",
            cuda=SimpleNamespace(is_available=lambda: has_gpu, set_device=self.current.append),
            device=lambda *names: names,
        )

    def test_kinds(self):
        """The instance decides, but one of KIND_MODEL leaves that to its model."""
        assert torch_device(self.torch(True), "m", "GPU", "1") == ("cuda", 1)
        assert self.current == [("cuda", 1)]  # for what a model makes on "cuda"
        assert torch_device(self.torch(True), "m", "CPU", "0") == ("cpu",)
        assert torch_device(self.torch(True), "m", "MODEL", "0") is None

    def test_no_gpu(self):
        """The message says what to do."""
        with pytest.raises(ConfigError, match=r"KIND_GPU, and torch 2.6 finds no GPU: install a package of torch for"):
            torch_device(self.torch(False), "m", "GPU", "0")


class TestCompletion:
    LOCATION = {
        "model_dir": "/models/m",
        "version": "3",
        "command_line": json.dumps({"cmdline": {"default-max-batch-size": "6"}}),
    }

    def test_by_the_model_file(self):
        """A backend describes the file of the version's folder, and the server says how many rows a batch may have."""
        asked = []

        def describe(read, version_dir):
            asked.append((read.name, read.runtime, version_dir))
            return [tensor("A", -1, 3)], [tensor("C", -1)]

        config = {"name": "m", "runtime": "model.py"}
        complete(config, self.LOCATION, describe)
        assert asked == [("m", "model.py", "/models/m/3")]
        assert (config["max_batch_size"], config["input"]) == (6, [entry("A", [3])])

    def test_of_what_is_complete(self):
        """A file is not read if the configuration has inputs and outputs."""
        config = {"input": [entry("A", [3])], "output": [entry("C", [3])]}
        complete(config, self.LOCATION, None)
        assert config == {"input": [entry("A", [3])], "output": [entry("C", [3])]}

    def test_of_a_model_that_batches(self):
        """The first dimension, which is free in all tensors, is that of the batch."""
        config = {"name": "m"}
        complete_config(config, [tensor("A", -1, 3), tensor("B", -1)], [tensor("C", -1, -1)], 4)
        assert config == {
            "name": "m",
            "max_batch_size": 4,
            "input": [entry("A", [3]), entry("B", [1], reshape={"shape": []})],
            "output": [entry("C", [-1])],
            "dynamic_batching": {},
        }
        assert is_complete(config)

    @pytest.mark.parametrize("other", [(2, 3), ()])
    def test_of_a_model_that_does_not(self, other):
        """One tensor with another first dimension, or with none, and there is no batch."""
        config = {"name": "m", "max_batch_size": 0}
        assert not is_complete(config)
        complete_config(config, [tensor("A", -1, 3)], [tensor("C", *other)], 4)
        assert (config["max_batch_size"], config["input"]) == (0, [entry("A", [-1, 3])])
        assert config["output"] == [entry("C", list(other) or [1])]
        assert "dynamic_batching" not in config

    def test_what_is_configured_stays(self):
        """Configured tensors, schedulers and batch sizes are not touched; a default of 1 needs no batcher."""
        config = {"max_batch_size": 2, "input": [entry("A", [-1])], "sequence_batching": {}}
        complete_config(config, [tensor("A", -1, 3)], [tensor("C", -1)], 4)
        assert config["max_batch_size"] == 2
        assert config["input"] == [entry("A", [-1])]
        assert "dynamic_batching" not in config
        unbatched = {"output": [entry("C", [-1, 3])]}
        complete_config(unbatched, [tensor("A", -1)], [tensor("C", -1, 3)], 4)
        assert unbatched["input"] == [entry("A", [-1])]
        assert "max_batch_size" not in unbatched

    def test_of_a_model_with_sequences(self):
        """What the server adds is no input for clients, and the next state no output, unless there is no other."""
        control = {"name": "C", "control": [{"int32_false_true": [0, 1]}]}
        batching = {"control_input": [control], "state": [state("S", "T", [3])]}
        config = {"name": "m", "sequence_batching": batching}
        inputs = [tensor("A", -1, 3), tensor("C", -1, 1), tensor("S", -1, 3)]
        complete_config(config, inputs, [tensor("B", -1), tensor("T", -1, 3)], 4)
        assert config["max_batch_size"] == 4
        assert [each["name"] for each in (*config["input"], *config["output"])] == ["A", "B"]
        only = {"name": "m", "sequence_batching": batching}
        complete_config(only, inputs, [tensor("T", -1, 3)], 4)
        assert only["output"] == [entry("T", [3])]

    def test_states_that_tell_of_no_batch(self):
        """A state with as many dimensions as in the file leaves none for the batch."""
        config = {"name": "m", "sequence_batching": {"state": [state("S", "T", [1, 3])]}}
        complete_config(config, [tensor("A", -1, 3), tensor("S", -1, 3)], [tensor("T", -1, 3)], 4)
        assert "max_batch_size" not in config
        assert config["input"] == [entry("A", [-1, 3])]

    def test_a_number_of_dimensions_that_is_open(self):
        """Such a tensor agrees with any configuration, and without one there is no shape to complete."""
        unknown = TensorSpec("A", "TYPE_FP32", None)
        config = {"name": "m", "max_batch_size": 4, "input": [entry("A", [3])]}
        complete_config(config, [unknown], [tensor("C", -1)], 4)
        assert config["max_batch_size"] == 4
        with pytest.raises(
            ConfigError, match=r"how many dimensions input 'A' has: declare each input in config.pbtxt$"
        ):
            complete_config({"name": "m"}, [unknown], [tensor("C", -1)], 4)

    def test_a_batch_that_is_not_possible(self):
        """The message is Triton's."""
        with pytest.raises(ConfigError, match=r"^autofill failed for model 'm': model does not support batching while"):
            complete_config({"name": "m", "max_batch_size": 2}, [tensor("A", 3)], [], 4)

    @pytest.mark.parametrize(
        ("config", "found"),
        [
            ({"input": [entry("A", [-1, 3])]}, tensor("A", 2, -1)),
            ({"max_batch_size": 1, "input": [entry("A", [3])]}, tensor("A", -1, 3)),
            ({"input": [entry("A", [1])]}, tensor("A")),
            ({"input": [entry("A", [4, 4])]}, TensorSpec("A", "TYPE_FP32", None)),
        ],
    )
    def test_tensors_that_agree(self, config, found):
        """-1 agrees with any size, and a rank that the file does not tell with any shape."""
        check_tensors(settings(**config), [found], [])

    @pytest.mark.parametrize(
        ("config", "found", "message"),
        [
            ({"input": [entry("X", [3])]}, tensor("A", 3), "unexpected inference input 'X', allowed inputs are: A"),
            (
                {"sequence_batching": {"state": [state("X", "Y", [3])]}},
                tensor("A", 3),
                "unexpected inference input 'X', allowed inputs are: A",
            ),
            (
                {"sequence_batching": {"control_input": [{"name": "C", "control": [{"data_type": "TYPE_UINT64"}]}]}},
                tensor("A", 3),
                "configuration specified sequence control 'C', but model does not provide that input",
            ),
            (
                {"input": [entry("A", [3], "TYPE_INT8")]},
                tensor("A", 3),
                "unable to load model 'm', configuration expects datatype TYPE_INT8 for input 'A', model provides "
                "TYPE_FP32",
            ),
            (
                {"input": [entry("A", [3])]},
                tensor("A", 3, 4),
                "model 'm', tensor 'A': the model expects 2 dimensions (shape [3,4]) but the model configuration "
                "specifies 1 dimensions (shape [3])",
            ),
            (
                {"max_batch_size": 2, "input": [entry("A", [4])]},
                tensor("A", -1, 3),
                "model 'm', tensor 'A': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
                "specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the "
                "explicit tensor shape) (shape [-1,4])",
            ),
            (
                {"max_batch_size": 2, "input": [entry("A", [3])]},
                tensor("A", 1, 3),
                "model 'm', tensor 'A': for the model to support batching the shape should have at least 1 dimension "
                "and the first dimension must be -1; but shape expected by the model is [1,3]",
            ),
        ],
    )
    def test_tensors_that_do_not(self, config, found, message):
        """The message has what the file says and what the configuration says."""
        with pytest.raises(ConfigError) as caught:
            check_tensors(settings(**config), [found], [])
        assert str(caught.value) == message

    def test_an_input_that_the_configuration_names_nowhere_is_refused(self):
        """Unless the model has a value for it, as ONNX has for an initializer."""
        config = {"input": [entry("A", [3])], "sequence_batching": {"state": [state("B", "C", [3])]}}
        found = [tensor(name, 3) for name in "ABDE"]
        with pytest.raises(ConfigError) as caught:
            check_tensors(settings(**config), found, [tensor("C", 3)])
        assert str(caught.value) == (
            "unable to load model 'm', configuration expects 2 inputs, model provides 4: declare 'D', 'E' in "
            "config.pbtxt, which the model needs in each request"
        )
        check_tensors(settings(**config), found, [tensor("C", 3)], optional=["D", "E"])


class TestFrameworks:
    def test_an_import(self):
        """A framework is a module."""
        assert import_framework("json", "json", "json", "m").dumps([1]) == "[1]"

    def test_a_framework_that_is_not_there(self):
        """The message says what to install, and where."""
        with pytest.raises(LoadError) as caught:
            import_framework("no_such_framework", "no-such", "framework", "m")
        assert str(caught.value) == (
            "model 'm' needs the package 'no-such', which its environment does not have: "
            f"{sys.prefix} (Python {sys.version.split()[0]}). Install it there (pip install pyruntime[framework], or "
            "pip install no-such), or name an environment that has it in the parameter EXECUTION_ENV_PATH of the model"
        )

    @pytest.mark.parametrize("code", ["import no_such_module", "raise ImportError('libx.so is not there')"])
    def test_a_framework_that_is_broken(self, tmp_path, monkeypatch, code):
        """A package that is there and cannot be imported is not asked to be installed."""
        (tmp_path / "broken_framework.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(
            LoadError, match=r"^model 'm' needs broken_framework, whose import fails in the environment "
        ):
            import_framework("broken_framework", "broken", "broken", "m")

    def test_a_reason_behind_another_one(self):
        """A framework's exception may have that of the dynamic loader as its cause."""
        wrapped = OSError("could not load this library")
        wrapped.__cause__ = OSError("/o.so: undefined symbol: f")
        assert "needs the symbol 'f', which" in str(explain_library("m", "/o.so", "torch", "2.1", wrapped))

    def test_a_library_for_another_framework_says_what_it_is(self, tmp_path):
        """By the function that the other one calls."""
        path = tmp_path / "ops.so"
        path.write_bytes(b"\x7fELF\0RegisterCustomOps\0")
        assert "'/none.so' cannot be loaded into" in str(explain_library("m", "/none.so", "torch", "2", OSError("x")))
        assert str(explain_library("m", str(path), "torch", "2.1", OSError("x: undefined symbol: OrtGetApiBase"))) == (
            f"model 'm': the library '{path}' has custom operations for ONNX Runtime, by its function "
            "RegisterCustomOps, and the model is one of PyTorch: name a library that was built for that in "
            "model_operations: x: undefined symbol: OrtGetApiBase"
        )
        own = str(explain_library("m", str(path), "onnxruntime", "1", OSError("x: undefined symbol: f")))
        assert "needs the symbol 'f', which onnxruntime 1" in own

    @pytest.mark.parametrize(
        ("reason", "lacking"),
        [
            ("/o.so: undefined symbol: _ZN3c10", "needs the symbol '_ZN3c10', which torch 2.1 of the environment "),
            ("x: version `VERS_1.9' not found (required", "needs the symbol version 'VERS_1.9', which torch 2.1 of "),
            ("no ELF", "cannot be loaded into torch 2.1 of the environment "),
            ("Failed to get symbol Register with error", "has no function Register, by which torch 2.1 registers "),
            ("dlSym cannot locate method 'f': undefined symbol: f", "has no function f, by which torch 2.1 registers "),
        ],
    )
    def test_a_library_that_does_not_load(self, reason, lacking):
        """The message names what is missing, the library, the version of the framework and the environment."""
        text = str(explain_library("m", "/o.so", "torch", "2.1", OSError(reason)))
        assert text.startswith("model 'm': the library ")
        assert f"'/o.so' {lacking}" in text
        assert "by which" in text or environment() in text
