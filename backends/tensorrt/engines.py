# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads an engine of TensorRT with its plugins, and describes its tensors and the shapes that it accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from pyruntime.backends.tensorrt.options import Options
from pyruntime.backends.toolkit.frameworks import explain_library, import_framework
from pyruntime.backends.toolkit.settings import Settings, TensorSpec
from pyruntime.utils.errors import LoadError

# By the name of TensorRT's datatype. Others, such as BF16 and FP8, have no arrays of numpy.
DATATYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "INT8": "TYPE_INT8",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "HALF": "TYPE_FP16",
    "FLOAT": "TYPE_FP32",
}

Shape = Tuple[int, ...]
# The smallest and the largest shape of each input.
Profile = Mapping[str, Tuple[Shape, Shape]]


@dataclass(frozen=True)
class Engine:
    """A loaded engine; `handle` is TensorRT's, `trt` the package. The runtime must live as long, and its log."""

    trt: Any
    log: Any
    runtime: Any
    handle: Any
    inputs: List[TensorSpec]
    outputs: List[TensorSpec]
    profiles: List[Profile]


def load_engine(settings: Settings, path: str, libraries: Sequence[str], options: Options) -> Engine:
    """The engine in a file, with the plugins of TensorRT and of `libraries`. Raises LoadError."""
    trt = import_framework("tensorrt", "tensorrt", "tensorrt", settings.name)
    log = _log_of(trt)
    trt.init_libnvinfer_plugins(log, "")
    for library in libraries:
        if trt.get_plugin_registry().load_library(library) is None:
            reason = OSError(log.error or "TensorRT gives no reason")
            raise explain_library(settings.name, library, "TensorRT", trt.__version__, reason)
    runtime = trt.Runtime(log)
    if options.version_compatible:
        runtime.engine_host_code_allowed = True
    with open(path, "rb") as file:
        handle = runtime.deserialize_cuda_engine(file.read())
    if handle is None:
        why = log.error or "it gives no reason"
        raise LoadError(
            f"model '{settings.name}' cannot be loaded by TensorRT {trt.__version__}: {why}. "
            "An engine is for the version of TensorRT and the kind of GPU that it was built with"
        )
    names = [handle.get_tensor_name(index) for index in range(handle.num_io_tensors)]
    inputs = [name for name in names if handle.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    return Engine(
        trt,
        log,
        runtime,
        handle,
        [_describe(settings, handle, name) for name in inputs],
        [_describe(settings, handle, name) for name in names if name not in inputs],
        [_profile(handle, inputs, index) for index in range(handle.num_optimization_profiles)],
    )


def make_context(engine: Engine, options: Options) -> Any:
    """An execution context of TensorRT, which allocates its memory as the options say. Raises LoadError."""
    create = engine.handle.create_execution_context
    if options.strategy is None:
        context = create()
    else:
        context = create(getattr(engine.trt.ExecutionContextAllocationStrategy, options.strategy))
    if context is None:
        raise LoadError(f"TensorRT makes no execution context: {engine.log.error or 'it gives no reason'}")
    return context


def find_profile(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> int:
    """The first profile that has all of these shapes. Raises ValueError if none has."""
    for index, profile in enumerate(profiles):
        if all(_is_between(shape, *profile[name]) for name, shape in shapes.items()):
            return index
    accepted = [
        ", ".join(f"'{name}' from {list(least)} to {list(most)}" for name, (least, most) in profile.items())
        for profile in profiles
    ]
    given = ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
    raise ValueError(f"no optimization profile has the shapes {given}; the engine has: {'; or '.join(accepted)}")


def rows_max(profiles: Sequence[Profile]) -> Optional[int]:
    """The largest first dimension that a profile has for all inputs; None if no input has dimensions."""
    largest: List[int] = []
    for profile in profiles:
        firsts = [most[0] for _, most in profile.values() if most]
        if firsts:
            largest.append(min(firsts))
    return max(largest) if largest else None


def _describe(settings: Settings, engine: Any, name: str) -> TensorSpec:
    kind = engine.get_tensor_dtype(name).name
    if kind not in DATATYPES:
        raise LoadError(
            f"model '{settings.name}' has '{name}' of the type {kind}, which cannot be served: inputs and outputs must "
            f"have one of the types {', '.join(DATATYPES)}"
        )
    return TensorSpec(name, DATATYPES[kind], tuple(engine.get_tensor_shape(name)))


def _profile(engine: Any, inputs: Sequence[str], index: int) -> Dict[str, Tuple[Shape, Shape]]:
    shapes = {name: engine.get_tensor_profile_shape(name, index) for name in inputs}
    return {name: (tuple(least), tuple(most)) for name, (least, _, most) in shapes.items()}


def _is_between(shape: Shape, least: Shape, most: Shape) -> bool:
    return len(shape) == len(least) and all(low <= size <= high for low, size, high in zip(least, shape, most))


def _log_of(trt: Any) -> Any:
    """A logger of TensorRT that keeps the last error, because functions that fail return None."""

    class Log(trt.ILogger):  # type: ignore[misc]  # the class exists with the framework only
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.error = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.error = message

    return Log()
