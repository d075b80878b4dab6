# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates a request against the model's configuration, before it queues. (pure)

This runs for every request, so a valid request causes few calls and allocations. Only the functions that build error
messages may be slow. The messages are Triton's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from struct import Struct

from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.utils.dtypes import BYTES_PREFIX_SIZE, DATATYPES
from pyruntime.utils.errors import Code, InferenceError

# Bytes per element, 0 for BYTES.
_SIZES = {datatype.name: datatype.size for datatype in DATATYPES}

# The event loop counts the elements of a BYTES tensor itself up to this size of their length prefixes. Beyond it the
# count takes milliseconds, so a thread does it.
STRINGS_AT_ONCE_BYTES_MAX = 64 << 10

# Triton counts elements and bytes in signed 64-bit integers.
SIZE_MAX = 2**63 - 1

_unpack_length = Struct("<I").unpack_from

_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def check_request(spec: ModelSpec, request: InferRequest) -> None:
    """Validate `request`, and complete it for execution.

    Sets `batch_size`: the leading dimension if the model batches, else 1. It is also 1 if that dimension is 0, because
    an empty request takes a place in a batch too. Inputs with a configured reshape get the shape that the model sees;
    for this reason call it only once per request. Raises InferenceError (INVALID_ARG) for an invalid request, which is
    then partly changed and must not be used.
    """
    if request.requested_outputs is not None:
        for name in request.requested_outputs:
            if name not in spec.outputs:
                raise _invalid(f"unexpected inference output '{name}' for model '{spec.name}'")
    inputs = request.inputs
    expected = spec.inputs
    if len(inputs) != len(expected) or {tensor.name for tensor in inputs} != expected.keys():
        check_names(spec, request, (tensor.name for tensor in inputs))
    is_batching = spec.max_batch_size > 0
    batch_size = -1
    for tensor in inputs:
        tensor_spec = expected[tensor.name]
        if tensor.datatype != tensor_spec.datatype:
            raise _wrong_datatype(spec, request, tensor, tensor_spec)
        shape = tensor.shape
        if len(shape) != len(tensor_spec.shape):
            raise _wrong_shape(spec, request, tensor, tensor_spec)
        count = 1
        for size, wanted in zip(shape, tensor_spec.shape):  # noqa: B905 - the lengths are equal, and strict costs time
            if size != wanted and wanted != -1:
                raise _wrong_shape(spec, request, tensor, tensor_spec)
            count *= size
        if is_batching and shape[0] != batch_size:
            if batch_size != -1:
                message = f"input '{tensor.name}' batch size does not match other inputs for '{spec.name}'"
                raise _failure(request, message)
            batch_size = shape[0]
            if batch_size > spec.max_batch_size:
                message = f"inference request batch-size must be <= {spec.max_batch_size} for '{spec.name}'"
                raise _failure(request, message)
        element_size = _SIZES[tensor.datatype]
        if element_size == 0:
            if tensor.strings != count:
                _check_bytes(request, tensor.name, tensor.data, count)
        elif count * element_size != (
            len(tensor.data) if tensor.client is None and tensor.gpu is None else tensor.byte_size
        ):
            raise _wrong_byte_size(spec, request, tensor, count * element_size)
        if tensor_spec.reshape is not None:
            batch = shape[:1] if is_batching else []
            tensor.shape = batch + _reshaped(shape[len(batch) :], tensor_spec.dims, tensor_spec.reshape)
    request.batch_size = batch_size if batch_size > 0 else 1


def client_shape(spec: ModelSpec, output_name: str, shape: list[int]) -> list[int]:
    """The shape that a client receives for an output of `shape`: undoes the configured reshape.

    Outputs without a reshape keep their shape. So do outputs whose shape contradicts the configuration: Triton sends
    them unchanged.
    """
    tensor_spec = spec.outputs.get(output_name)
    if tensor_spec is None or tensor_spec.reshape is None:
        return shape
    batch = shape[:1] if spec.max_batch_size > 0 else []
    made = shape[len(batch) :]
    if len(made) != len(tensor_spec.reshape):
        return shape
    if any(wanted not in (-1, size) for size, wanted in zip(made, tensor_spec.reshape, strict=True)):
        return shape
    return batch + _reshaped(made, tensor_spec.reshape, tensor_spec.dims)


def _reshaped(shape: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[int]:
    """`new` with its variable dimensions replaced, in order, by the sizes that `shape` has where `old` is variable."""
    sizes = iter([size for size, dim in zip(shape, old, strict=True) if dim == -1])
    return [next(sizes) if dim == -1 else dim for dim in new]


def check_names(spec: ModelSpec, request: InferRequest, input_names: Iterable[str]) -> None:
    """Raise InferenceError for duplicate or unknown inputs, and unless all missing inputs are optional.

    Of more names than the model has inputs, it always raises, and reads no more of them than the error needs.
    """
    names: dict[str, None] = {}
    for name in input_names:
        if name in names:
            raise _failure(request, f"input '{name}' already exists in request")
        names[name] = None
    missing = [name for name in spec.inputs if name in spec.required_inputs and name not in names]
    if not len(spec.required_inputs) <= len(names) <= len(spec.inputs):
        raise _wrong_count(spec, request, names, missing)
    for name in names:
        if name not in spec.inputs:
            raise _invalid(f"unexpected inference input '{name}' for model '{spec.name}'")
    if missing:
        raise _wrong_count(spec, request, names, missing)


def has_many_strings(request: InferRequest) -> bool:
    """Whether `check_request` would need more than a few milliseconds to count the elements of BYTES inputs."""
    for tensor in request.inputs:
        if tensor.datatype == "BYTES" and tensor.strings < 0 and len(tensor.data) > STRINGS_AT_ONCE_BYTES_MAX:
            return math.prod(tensor.shape) * BYTES_PREFIX_SIZE > STRINGS_AT_ONCE_BYTES_MAX
    return False


def check_strings(request: InferRequest) -> None:
    """Count the elements of BYTES inputs in advance, so that `check_request` need not. May run in any thread.

    Raises InferenceError (INVALID_ARG) like `check_request`.
    """
    for tensor in request.inputs:
        if tensor.datatype == "BYTES":
            count = math.prod(tensor.shape)
            _check_bytes(request, tensor.name, tensor.data, count)
            tensor.strings = count


def _check_bytes(request: InferRequest, name: str, data: memoryview | bytes, count: int) -> None:
    """Raise unless `data` is exactly `count` elements, each a length prefix followed by that many bytes."""
    end = len(data)
    last = end - BYTES_PREFIX_SIZE
    unpack_length = _unpack_length
    offset = found = length = 0
    # Once for every string, of which there may be millions.
    while offset <= last and found <= count:
        (length,) = unpack_length(data, offset)
        offset += BYTES_PREFIX_SIZE + length
        found += 1
    if offset == end and found == count:
        return
    if count > SIZE_MAX:
        raise _too_many(name, "element count")
    if offset > end:
        raise _invalid(
            f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
            f"{end - offset + length} bytes available"
        )
    if found > count:
        raise _failure(
            request,
            f"unexpected number of string elements {found} for inference input '{name}' for model "
            f"'{request.model_name}', expecting {count}",
        )
    if offset < end:
        raise _failure(
            request,
            f"incomplete string length indicator for inference input '{name}' for model '{request.model_name}', "
            f"expecting {BYTES_PREFIX_SIZE} bytes but only {end - offset} bytes available. Please make sure the string "
            "length indicator is in one buffer.",
        )
    raise _failure(
        request,
        f"expected {count} string elements for inference input '{name}' for model '{request.model_name}', got {found}",
    )


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)


def _failure(request: InferRequest, message: str) -> InferenceError:
    return request.failure(message, Code.INVALID_ARG)


def _wrong_count(spec: ModelSpec, request: InferRequest, names: Collection[str], missing: list[str]) -> InferenceError:
    least, most = len(spec.required_inputs), len(spec.inputs)
    if least == most:
        expected = f"expected {most} inputs but got {len(names)} inputs"
    else:
        expected = f"expected number of inputs between {least} and {most} but got {len(names)} inputs"
    return _failure(
        request,
        f"{expected} for model '{spec.name}'. Got input(s) {_quoted(names)}, but missing required input(s) "
        f"{_quoted(missing)}. Please provide all required input(s).",
    )


def _wrong_datatype(
    spec: ModelSpec, request: InferRequest, tensor: InputTensor, tensor_spec: TensorSpec
) -> InferenceError:
    datatype = tensor.datatype if tensor.datatype in _SIZES else "<invalid>"
    return _failure(
        request,
        f"inference input '{tensor.name}' data-type is '{datatype}', but model '{spec.name}' expects "
        f"'{tensor_spec.datatype}'",
    )


def _wrong_shape(
    spec: ModelSpec, request: InferRequest, tensor: InputTensor, tensor_spec: TensorSpec
) -> InferenceError:
    note = _BATCHING_NOTE if spec.max_batch_size > 0 else ""
    return _failure(
        request,
        f"unexpected shape for input '{tensor.name}' for model '{spec.name}'. Expected "
        f"{_dims(tensor_spec.shape)}, got {_dims(tensor.shape)}. {note}",
    )


def _wrong_byte_size(spec: ModelSpec, request: InferRequest, tensor: InputTensor, expected: int) -> InferenceError:
    if expected > SIZE_MAX:
        too_many_elements = expected // _SIZES[tensor.datatype] > SIZE_MAX
        return _too_many(tensor.name, "element count" if too_many_elements else "byte size")
    return _failure(
        request,
        f"input byte size mismatch for input '{tensor.name}' for model '{spec.name}'. Expected {expected}, "
        f"got {tensor.byte_size}",
    )


def _too_many(name: str, what: str) -> InferenceError:
    return _invalid(f"{what} for tensor '{name}' exceeds maximum size of {SIZE_MAX}")


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _dims(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
