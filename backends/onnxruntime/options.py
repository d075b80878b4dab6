# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Translates a model's configuration to the settings of an ONNX Runtime session. (pure)

Names and values of the parameters are those of Triton's ONNX Runtime backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError

# optimization { graph { level } }. Without it ONNX Runtime does all that it can.
GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 0: "ORT_ENABLE_ALL", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
EXECUTION_MODES = {0: "ORT_SEQUENTIAL", 1: "ORT_PARALLEL"}
# Parameters that are entries of the configuration of a session, and of a call.
_SESSION_ENTRIES = ("session.", "optimization.", "ep.")
_RUN_ENTRIES = ("memory.",)
# Parameters that are options of the execution provider for CUDA.
CUDA_OPTIONS = (
    "gpu_mem_limit",
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "do_copy_in_default_stream",
)
# The accelerators of optimization { execution_accelerators }.
ACCELERATORS = {"openvino": "OpenVINOExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
# Triton's parameters of the accelerator tensorrt, by the options of ONNX Runtime that they are. Its own names, which
# begin with trt_, are parameters, too.
_TENSORRT_OPTIONS = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "INT8": {"trt_int8_enable": "1"}}

# Entries of a session's configuration that a model does not set itself. Threads that wait for work do not spin: the
# server shares the cores with them.
ENTRIES = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}

Provider = Tuple[str, Dict[str, str]]


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session. The names of enumerations are attributes of the package. None leaves a default.

    `entries` configure the session, `run_entries` each of its calls.
    """

    intra_op_threads: int
    inter_op_threads: Optional[int]
    execution_mode: str
    graph_level: str
    memory_arena: Optional[bool]
    memory_pattern: Optional[bool]
    entries: Mapping[str, str]
    run_entries: Mapping[str, str]


def session_settings(settings: Settings, config: Mapping[str, Any], threads: int) -> SessionSettings:
    """The settings for one instance, with `threads` unless the parameters say otherwise. Raises ConfigError."""
    intra_op = settings.integer("intra_op_thread_count", threads)
    assert intra_op is not None  # it has a default
    return SessionSettings(
        intra_op_threads=intra_op,
        inter_op_threads=settings.integer("inter_op_thread_count"),
        execution_mode=_execution_mode(settings),
        graph_level=_graph_level(settings, config),
        memory_arena=_flag(settings, "enable_mem_arena"),
        memory_pattern=_flag(settings, "enable_mem_pattern"),
        entries={**ENTRIES, **_entries(settings, _SESSION_ENTRIES)},
        run_entries=_entries(settings, _RUN_ENTRIES),
    )


def providers(
    settings: Settings, config: Mapping[str, Any], kind: str, device: str, available: Sequence[str]
) -> List[Provider]:
    """The execution providers of an instance, by its kind and device, the preferred one first. Raises ConfigError."""
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    found: List[Provider] = []
    if kind == "GPU":
        found += [_accelerator(settings, each) for each in accelerators.get("gpu_execution_accelerator", ())]
        options = {name: settings.parameters[name] for name in CUDA_OPTIONS if name in settings.parameters}
        found.append(("CUDAExecutionProvider", {"device_id": device, **options}))
    else:
        found += [_accelerator(settings, each) for each in accelerators.get("cpu_execution_accelerator", ())]
    for name, _ in found:
        if name not in available:
            raise ConfigError(
                f"model '{settings.name}' has an instance of kind KIND_{kind} that needs ONNX Runtime's {name}, and "
                f"the installed package has {', '.join(available)}: install a package with it (onnxruntime-gpu for "
                "CUDA), or use KIND_CPU without that accelerator"
            )
    return [*found, ("CPUExecutionProvider", {})]


def _accelerator(settings: Settings, accelerator: Mapping[str, Any]) -> Provider:
    name = accelerator.get("name", "")
    if name not in ACCELERATORS:
        raise ConfigError(
            f"unknown Execution Accelerator '{name}' is requested: model '{settings.name}' may use "
            f"{' or '.join(ACCELERATORS)}"
        )
    parameters = dict(accelerator.get("parameters", {}))
    return ACCELERATORS[name], _tensorrt_options(settings, parameters) if name == "tensorrt" else parameters


def _tensorrt_options(settings: Settings, parameters: Dict[str, str]) -> Dict[str, str]:
    options: Dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise ConfigError(
                    f"unsupported precision mode '{value}' is requested: model '{settings.name}' may use "
                    f"{', '.join(_TENSORRT_PRECISIONS)}"
                )
            options.update(_TENSORRT_PRECISIONS[value])
        elif name in _TENSORRT_OPTIONS or name.startswith("trt_"):
            options[_TENSORRT_OPTIONS.get(name, name)] = value
        else:
            raise ConfigError(
                f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator: model '{settings.name}' "
                f"may use {', '.join(['precision_mode', *_TENSORRT_OPTIONS])} and options that begin with trt_"
            )
    return options


def _graph_level(settings: Settings, config: Mapping[str, Any]) -> str:
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in GRAPH_LEVELS:
        raise ConfigError(
            f"model '{settings.name}' has the graph optimization level {level}, which must be -1 (basic), "
            "1 (extended), 2 (none) or 0 (all)"
        )
    return GRAPH_LEVELS[level]


def _execution_mode(settings: Settings) -> str:
    mode = settings.integer("execution_mode", 0)
    if mode not in EXECUTION_MODES:
        raise settings.refused("execution_mode", "0 (sequential) or 1 (parallel)")
    return EXECUTION_MODES[mode]


def _flag(settings: Settings, parameter: str) -> Optional[bool]:
    return settings.boolean(parameter) if parameter in settings.parameters else None


def _entries(settings: Settings, prefixes: Tuple[str, ...]) -> Dict[str, str]:
    """The parameters that are entries of a configuration of ONNX Runtime, which checks them itself."""
    return {name: value for name, value in settings.parameters.items() if name.startswith(prefixes)}
