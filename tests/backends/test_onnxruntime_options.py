# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations as settings of a session of ONNX Runtime. The framework is not needed."""

import pytest

from pyruntime.backends.onnxruntime.options import ENTRIES, providers, session_settings
from pyruntime.backends.onnxruntime.tensors import describe_error
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError

CPU = ("CPUExecutionProvider", {})


def read(optimization=None, **values):
    parameters = {name.replace("__", "."): {"string_value": value} for name, value in values.items()}
    config = {"name": "m", "parameters": parameters, "optimization": optimization or {}}
    return read_settings(config), config


def test_defaults():
    """An instance has its part of the cores, and all else is as ONNX Runtime has it."""
    found = session_settings(*read(), 3)
    assert (found.intra_op_threads, found.inter_op_threads) == (3, None)
    assert (found.execution_mode, found.graph_level) == ("ORT_SEQUENTIAL", "ORT_ENABLE_ALL")
    assert (found.memory_arena, found.memory_pattern, found.entries) == (None, None, ENTRIES)


def test_parameters():
    """The names are Triton's; entries of the session's configuration are passed on."""
    of = read(
        {"graph": {"level": 1}},
        intra_op_thread_count="0",
        inter_op_thread_count="2",
        execution_mode="1",
        enable_mem_arena="0",
        enable_mem_pattern="1",
        session__disable_prepacking="1",
        memory__enable_memory_arena_shrinkage="cpu:0",
        other="x",
    )
    found = session_settings(*of, 3)
    assert (found.intra_op_threads, found.inter_op_threads) == (0, 2)
    assert (found.execution_mode, found.graph_level) == ("ORT_PARALLEL", "ORT_ENABLE_EXTENDED")
    assert (found.memory_arena, found.memory_pattern) == (False, True)
    assert found.entries == {**ENTRIES, "session.disable_prepacking": "1"}
    assert found.run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}


def test_threads_that_spin():
    """Threads that wait do not spin, unless the model wants it."""
    assert session_settings(*read(), 3).entries["session.intra_op.allow_spinning"] == "0"
    found = session_settings(*read(session__intra_op__allow_spinning="1"), 3)
    assert found.entries == {**ENTRIES, "session.intra_op.allow_spinning": "1"}


@pytest.mark.parametrize(("level", "name"), [(-1, "BASIC"), (0, "ALL"), (1, "EXTENDED")])
def test_graph_levels(level, name):
    """The levels are Triton's."""
    assert session_settings(*read({"graph": {"level": level}}), 1).graph_level == f"ORT_ENABLE_{name}"


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (read({"graph": {"level": 3}}), "has the graph optimization level 3, which must be"),
        (read(execution_mode="2"), "execution_mode '2', which must be 0 .sequential. or 1 .parallel."),
        (read(intra_op_thread_count="many"), "intra_op_thread_count 'many', which must be an integer"),
    ],
)
def test_refused(of, message):
    """The message names the value and those that are allowed."""
    with pytest.raises(ConfigError, match=message):
        session_settings(*of, 1)


class TestProviders:
    def test_of_an_instance_on_the_cpu(self):
        """No other kind but GPU uses a GPU."""
        assert providers(*read(), "CPU", "0", [CPU[0]]) == [CPU]
        assert providers(*read(), "MODEL", "0", [CPU[0], "CUDAExecutionProvider"]) == [CPU]

    def test_of_an_instance_on_a_gpu(self):
        """It gets its device, and the options of CUDA that the parameters have."""
        cuda = ("CUDAExecutionProvider", {"device_id": "1", "gpu_mem_limit": "9"})
        assert providers(*read(gpu_mem_limit="9"), "GPU", "1", [cuda[0], CPU[0]]) == [cuda, CPU]

    def test_accelerators(self):
        """An accelerator comes first, with its parameters."""
        accelerators = {
            "cpu_execution_accelerator": [{"name": "openvino", "parameters": {"num_of_threads": "2"}}],
            "gpu_execution_accelerator": [{"name": "tensorrt"}],
        }
        of = read({"execution_accelerators": accelerators})
        names = ["OpenVINOExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider"]
        assert providers(*of, "CPU", "0", names) == [(names[0], {"num_of_threads": "2"}), CPU]
        assert [name for name, _ in providers(*of, "GPU", "0", names)] == [names[1], names[2], CPU[0]]

    def test_parameters_of_tensorrt(self):
        """They have Triton's names, or those of ONNX Runtime; others are refused."""

        def options(**parameters):
            accelerator = {"name": "tensorrt", "parameters": parameters}
            of = read({"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}})
            names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", CPU[0]]
            return providers(*of, "GPU", "0", names)[0][1]

        given = {"precision_mode": "FP16", "max_workspace_size_bytes": "9", "trt_engine_cache_enable": "1"}
        assert options(**given) == {
            "trt_fp16_enable": "1",
            "trt_max_workspace_size": "9",
            "trt_engine_cache_enable": "1",
        }
        assert (options(precision_mode="FP32"), options(precision_mode="INT8")) == ({}, {"trt_int8_enable": "1"})
        with pytest.raises(
            ConfigError, match="unsupported precision mode 'FP8' is requested: model 'm' may use FP32, "
        ):
            options(precision_mode="FP8")
        with pytest.raises(ConfigError, match="unknown parameter 'x' is provided for TensorRT Execution Accelerator"):
            options(x="1")

    def test_what_is_not_there(self):
        """The message names the provider, those of the package, and what to install."""
        with pytest.raises(ConfigError, match=r"KIND_GPU that needs ONNX Runtime.s CUDAExecutionProvider, and"):
            providers(*read(), "GPU", "0", [CPU[0]])
        unknown = {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "x"}]}}
        with pytest.raises(ConfigError, match=r"^unknown Execution Accelerator 'x' is requested: model 'm' may use "):
            providers(*read(unknown), "CPU", "0", [CPU[0]])


def test_messages():
    """Errors of ONNX Runtime have the form of Triton's backend."""
    assert describe_error(Exception("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : bad\nshape\n")) == (
        "onnx runtime error 2: bad\nshape"
    )
    assert describe_error(Exception("other")) == "other"
