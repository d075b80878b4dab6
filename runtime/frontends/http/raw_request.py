# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP inference request without a document: its body is the contents of the model's only input. (pure)

A client asks for it with `Inference-Header-Content-Length: 0`. Everything that a document would say is deduced.
"""

from __future__ import annotations

import math

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.requests.types import InferRequest, InputTensor, request_failure
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError


def decode_raw(body: memoryview, spec: ModelSpec, base: int) -> InferRequest:
    """The request whose one input is all of `body`, a view of bytes that starts at `base` in the request region, or -1.

    Its shape is that of the model's configuration, with a batch size of 1 where the model batches; one dimension may be
    variable and follows from the size. Raises InferenceError (INVALID_ARG) where this does not make a shape.
    """
    if len(spec.inputs) != 1:
        raise _invalid(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(spec.inputs)} inputs in "
            f"'{spec.name}' model configuration"
        )
    (tensor,) = spec.inputs.values()
    batch = [1] if spec.max_batch_size > 0 else []
    if tensor.datatype == "BYTES":
        if tensor.dims != (1,):
            raise _invalid(f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]")
        # The client sends the bare string, so its length has yet to come before it.
        contents = len(body).to_bytes(BYTES_PREFIX_SIZE, "little") + body
        return InferRequest(spec.name, inputs=[InputTensor(tensor.name, "BYTES", [*batch, 1], contents)])
    shape = batch + _deduce(tensor.name, tensor.dims, BY_NAME[tensor.datatype].size, len(body))
    return InferRequest(spec.name, inputs=[InputTensor(tensor.name, tensor.datatype, shape, body, base)])


def _deduce(name: str, dims: tuple[int, ...], element_size: int, size: int) -> list[int]:
    """`dims` with its one variable dimension, if it has one, as large as `size` bytes of contents make it."""
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    shape = list(dims)
    if not variable:
        return shape
    if len(variable) > 1:
        raise _invalid(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    step = element_size * math.prod(dim for dim in dims if dim >= 0)
    if step == 0 or size % step:
        raise _invalid(
            f"The shape of the raw input '{name}' can not be deduced: its size must be a multiple of {step} bytes, "
            f"got {size}"
        )
    shape[variable[0]] = size // step
    return shape


def _invalid(message: str) -> InferenceError:
    # Nothing in such a request could be its id.
    return request_failure("", message, Code.INVALID_ARG)
