# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a model declares, as native code reads plain requests by it. (pure)"""

from __future__ import annotations

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.utils.dtypes import BY_NAME

# The most inputs, or outputs, and the most dimensions, of models whose requests native code reads (native/codecs).
TENSORS_MAX = 64
DIMS_MAX = 32


def declared_inputs(spec: ModelSpec) -> list[tuple[str, str, int, tuple[int, ...], bool]] | None:
    """(name, datatype, size of an element in bytes or 0 for BYTES, shape, whether it is required) of each input.

    None if no request to the model is plain: only those are whose inputs the model sees as clients send them.
    """
    if len(spec.inputs) > TENSORS_MAX or len(spec.outputs) > TENSORS_MAX:
        return None
    if any(each.reshape is not None or len(each.shape) > DIMS_MAX for each in spec.inputs.values()):
        return None
    return [
        (name, tensor.datatype, BY_NAME[tensor.datatype].size, tensor.shape, name in spec.required_inputs)
        for name, tensor in spec.inputs.items()
    ]


def declared_outputs(spec: ModelSpec) -> list[tuple[str, str, tuple[int, ...]]] | None:
    """(name, datatype, shape) of each output; None if clients see an output in another shape than the model's."""
    if any(each.reshape is not None for each in spec.outputs.values()):
        return None
    return [(name, tensor.datatype, tensor.shape) for name, tensor in spec.outputs.items()]
