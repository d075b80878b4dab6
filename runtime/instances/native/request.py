# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a request from native code to an InferRequest. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyruntime.runtime.calls.model_call import Callee
from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.requests.types import InferRequest, InputTensor, Parameter, Slot
from pyruntime.utils.dtypes import BY_NAME, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START


@dataclass(slots=True)
class NativeInput:
    """One input. `datatype` is None for a raw input, which has the datatype and shape of the model's configuration.

    `contents` is the caller's memory, valid until its call is answered.
    """

    name: str
    datatype: str | None
    shape: list[int]
    contents: memoryview | bytes


@dataclass(slots=True)
class NativeRequest:
    """The arguments of a call "infer": see runtime/native/triton/inference.h, in the same order.

    `trace` is the context of the trace that it belongs to, "" for none. `loading` is the model that makes the request
    while it is loaded itself, or "". `caller` is the job that the request is made for, if that is known.
    """

    number: int
    model: str
    version: int
    id: str
    correlation_id: int | str
    flags: int
    priority: int
    timeout_us: int
    parameters: dict[str, Parameter]
    inputs: Sequence[tuple[str, str | None, list[int], memoryview | bytes]]
    requested_outputs: list[str] | None
    trace: str
    loading: str
    caller: Job | None

    def make_job(self, callee: Callee, slots: list[Slot], respond: Respond) -> Job:
        """See model_call.OutgoingRequest. The inputs are copied into the callee's request memory."""
        return callee.accept(self.infer_request(callee.spec), respond)

    def infer_request(self, spec: ModelSpec) -> InferRequest:
        """The request for a model version. Raises InferenceError INVALID_ARG if it is not valid."""
        inputs = [NativeInput(*fields) for fields in self.inputs]
        request = InferRequest(
            self.model,
            self.version,
            self.id,
            [],
            self.requested_outputs,
            self.parameters,
            self.correlation_id,
            bool(self.flags & SEQUENCE_START),
            bool(self.flags & SEQUENCE_END),
            self.priority,
            self.timeout_us,
        )
        for tensor in inputs:
            if any(dim < 0 for dim in tensor.shape):
                raise _failure(request, f"input '{tensor.name}' has a negative dimension")
        if any(tensor.datatype is None for tensor in inputs):
            request.inputs = [_deduced(spec, request, inputs)]
        else:
            request.inputs = [
                InputTensor(tensor.name, tensor.datatype or "", tensor.shape, tensor.contents) for tensor in inputs
            ]
        return request


def _deduced(spec: ModelSpec, request: InferRequest, inputs: list[NativeInput]) -> InputTensor:
    """The input of a raw request, with the datatype and shape of the model's only input."""
    if len(inputs) != 1 or len(spec.inputs) != 1:
        raise _failure(
            request,
            f"Raw request must only have 1 input (found {len(inputs)}) to be deduced but got {len(spec.inputs)} inputs "
            f"in '{spec.name}' model configuration",
        )
    (tensor,), (tensor_spec,) = inputs, spec.inputs.values()
    contents = tensor.contents
    if tensor_spec.datatype == "BYTES":
        contents = len(contents).to_bytes(BYTES_PREFIX_SIZE, "little") + bytes(contents)
    shape = _deduced_shape(request, tensor_spec, len(tensor.contents))
    batch = [1] if spec.max_batch_size > 0 else []
    return InputTensor(tensor_spec.name, tensor_spec.datatype, batch + shape, contents)


def _deduced_shape(request: InferRequest, tensor: TensorSpec, size: int) -> list[int]:
    """The shape, without the batch dimension, of an input of `size` bytes."""
    if tensor.dims.count(-1) > 1:
        raise _failure(
            request,
            f"The shape of the raw input '{tensor.name}' can not be deduced because there are more than one "
            "variable-sized dimension",
        )
    count = 1
    for dim in tensor.dims:
        count *= abs(dim)
    if tensor.datatype == "BYTES":
        if count != 1:
            raise _failure(request, f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1]")
        return [1] * len(tensor.dims)
    left = size // BY_NAME[tensor.datatype].size // count if count else 0
    return [left if dim == -1 else dim for dim in tensor.dims]


def _failure(request: InferRequest, message: str) -> InferenceError:
    return request.failure(message, Code.INVALID_ARG)
