# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads OpenVINO models, shapes them as a configuration wants, and describes their tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence

import triton_python_backend_utils as pb_utils

from pyruntime.backends.openvino.options import Options
from pyruntime.backends.toolkit.settings import Settings, TensorSpec
from pyruntime.backends.toolkit.texts import TextArrays
from pyruntime.utils.errors import ConfigError, LoadError

# By OpenVINO's names. BF16 is missing, because the Python interface has no arrays of it.
DATATYPES = {
    "boolean": "TYPE_BOOL",
    "u8": "TYPE_UINT8",
    "u16": "TYPE_UINT16",
    "u32": "TYPE_UINT32",
    "u64": "TYPE_UINT64",
    "i8": "TYPE_INT8",
    "i16": "TYPE_INT16",
    "i32": "TYPE_INT32",
    "i64": "TYPE_INT64",
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
    "f64": "TYPE_FP64",
    "string": "TYPE_STRING",
}


class OpenvinoArrays(TextArrays):
    """Arrays of numpy, with BYTES as numpy's own strings: OpenVINO's Python interface takes no others."""

    def __init__(self) -> None:
        super().__init__("OpenVINO")

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """See Arrays. Raises ValueError for BYTES that are not UTF-8, or that such strings cannot hold."""
        array = super().read(tensor)
        if array.dtype != object:
            return array
        if any(text.endswith("\0") for text in array.ravel()):
            raise ValueError(
                f"input '{tensor.name()}' has an element that ends with a zero byte, which OpenVINO's Python interface "
                "would leave out"
            )
        return array.astype(str)


def describe_error(exc: BaseException) -> str:
    """An error of OpenVINO without the places in its source."""
    lines = [line for line in str(exc).splitlines() if line.strip() and not line.startswith("Exception from ")]
    return "openvino error: " + " ".join(line.strip() for line in lines)


def name_of(port: Any, wanted: Sequence[str] = ()) -> str:
    """The name of an input or output: the one of its names that is wanted, else any, else that of its operation."""
    names: List[str] = sorted(port.get_names())
    for each in names:
        if each in wanted:
            return each
    return names[0] if names else str(port.get_node().get_friendly_name())


def names_of(port: Any, wanted: Sequence[str]) -> List[str]:
    """All wanted names of an output, which may have several; see `name_of` if none is."""
    names = set(port.get_names())
    return [each for each in wanted if each in names] or [name_of(port)]


def describe_outputs(model: str, ports: Sequence[Any], wanted: Sequence[TensorSpec]) -> Dict[TensorSpec, int]:
    """The outputs of a model under all names that are wanted, with their places. See `describe`."""
    names = [tensor.name for tensor in wanted]
    described = {}
    for place, (port, tensor) in enumerate(zip(ports, describe(model, ports, wanted))):
        for name in names_of(port, names):
            described[replace(tensor, name=name)] = place
    return described


def describe(model: str, ports: Sequence[Any], wanted: Sequence[TensorSpec] = ()) -> List[TensorSpec]:
    """The inputs or outputs of a model, with all dimensions. Raises LoadError for a datatype that cannot be served."""
    names = [tensor.name for tensor in wanted]
    described = []
    for port in ports:
        name, kind = name_of(port, names), port.get_element_type().get_type_name()
        if kind not in DATATYPES:
            raise LoadError(
                f"model '{model}' has '{name}' of the type {kind}, which cannot be served: inputs and outputs must "
                f"have one of the types {', '.join(DATATYPES)}"
            )
        described.append(TensorSpec(name, DATATYPES[kind], _dims(port.get_partial_shape())))
    return described


def shape_model(settings: Settings, options: Options, model: Any) -> int:
    """Give the inputs the shapes that the configuration wants. Returns the batch size of the model, -1 for any.

    With `keeps_batch_size` it is that of the model file, else any if there is batching. Raises ConfigError.
    """
    wanted = {tensor.name: tensor.dims or () for tensor in settings.all_inputs}
    is_batching = settings.max_batch_size > 0
    shapes: Dict[Any, List[int]] = {}
    sizes = set()
    for port in model.inputs:
        partial = port.get_partial_shape()
        if partial.rank.is_dynamic or not len(partial):
            continue
        dims = list(_dims(partial) or ())
        sizes.add(dims[0])
        name = name_of(port, list(wanted))
        if options.reshapes and name in wanted:
            dims = [*dims[:1], *wanted[name]] if is_batching else list(wanted[name])
        if is_batching and not options.keeps_batch_size:
            dims[0] = -1
        if dims != list(_dims(partial) or ()):
            shapes[port] = dims
    if shapes:
        try:
            model.reshape(shapes)
        except Exception as exc:
            raise ConfigError(
                f"model '{settings.name}' cannot have inputs of the shapes {list(shapes.values())}: set the parameter "
                f"SKIP_OV_DYNAMIC_BATCHSIZE to YES if it has one batch size only: {describe_error(exc)}"
            ) from exc
    size = max(sizes, default=-1) if is_batching and options.keeps_batch_size else -1
    if size > 0 and size != settings.max_batch_size:
        raise ConfigError(
            f"model '{settings.name}' has the batch size {size} in its file, which SKIP_OV_DYNAMIC_BATCHSIZE keeps, so "
            f"max_batch_size must be {size}, not {settings.max_batch_size}"
        )
    return size


def _dims(partial: Any) -> Any:
    """The dimensions of a shape, -1 for any size; None if their number is open."""
    if partial.rank.is_dynamic:
        return None
    return tuple(size.get_length() if size.is_static else -1 for size in partial)
