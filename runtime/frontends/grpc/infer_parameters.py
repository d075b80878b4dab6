# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a ModelInferRequest, and of its inputs and outputs, with Triton's messages. (pure)

The value of a parameter has one of five types. Values are not converted: a number is neither a boolean nor a string.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyruntime.runtime.frontends.common.request_parameters import UINT64_MAX, sequence_name
from pyruntime.runtime.frontends.grpc.schema import FieldValue, Message
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.utils.errors import Code, InferenceError

_INT, _UINT, _STRING, _BOOL = "int64_param", "uint64_param", "string_param", "bool_param"

# The only reserved parameter that clients may set: whether the end of the responses is sent as an empty response.
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
    f"'triton_' are allowed: {EMPTY_FINAL_RESPONSE}"
)


def read_request_parameters(request: InferRequest, entries: Mapping[str, Message]) -> bool:
    """Put the parameters of a request into `request`. Returns whether its client wants an empty final response.

    Raises InferenceError: INVALID_ARG, and UNSUPPORTED where the name of a sequence is too long.
    """
    empty_final = False
    for name, parameter in entries.items():
        match name:
            case "sequence_id":
                value = _value(name, parameter, _INT, _STRING)
                # As in Triton, which reads the number as unsigned.
                request.sequence_id = value & UINT64_MAX if isinstance(value, int) else sequence_name(value)
            case "sequence_start":
                request.sequence_start = _value(name, parameter, _BOOL)
            case "sequence_end":
                request.sequence_end = _value(name, parameter, _BOOL)
            case "priority":
                request.priority = _value(name, parameter, _INT, _UINT)
                if request.priority < 0:
                    raise _invalid("invalid value for 'priority', expected value >= 0.")
            case "timeout":
                request.timeout_us = _value(name, parameter, _INT) & UINT64_MAX
            case _ if name.startswith("triton_"):
                if name != EMPTY_FINAL_RESPONSE:
                    raise _invalid(_RESERVED)
                empty_final = _value(name, parameter, _BOOL)
            case _:
                kind = parameter.WhichOneof("parameter_choice")
                if kind is None:
                    raise _wrong_type(name, "int64_param, bool_param, or string_param")
                request.parameters[name] = getattr(parameter, kind)
    return empty_final


def read_place(tensor: str, entries: Mapping[str, Message]) -> tuple[str, int, int] | None:
    """The place of a tensor in shared memory: (region, offset, byte_size); None if it is not there.

    Raises InferenceError (INVALID_ARG).
    """
    region = _of_tensor(tensor, entries, "shared_memory_region", _STRING)
    offset = _of_tensor(tensor, entries, "shared_memory_offset", _INT)
    size = _of_tensor(tensor, entries, "shared_memory_byte_size", _INT)
    if region is None:
        for name, value in (("shared_memory_offset", offset), ("shared_memory_byte_size", size)):
            if value is not None:
                raise _invalid(
                    f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
                )
        return None
    if size is None:
        raise _invalid(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    return region, offset or 0, size


def read_classes(entries: Mapping[str, Message]) -> int:
    """The number of classes that are wanted of an output, 0 for its contents. Raises InferenceError (INVALID_ARG)."""
    if "classification" not in entries:
        return 0
    count: int = _value("classification", entries["classification"], _INT)
    if count <= 0:
        raise _invalid("invalid value for 'classification' parameter, expected >= 0")
    return count


def _of_tensor(tensor: str, entries: Mapping[str, Message], name: str, kind: str) -> FieldValue:
    if name not in entries:
        return None
    parameter = entries[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise _invalid(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameter, kind)


def _value(name: str, parameter: Message, *kinds: str) -> FieldValue:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in kinds:
        raise _wrong_type(name, " or ".join(kinds))
    return getattr(parameter, kind)


def _wrong_type(name: str, expected: str) -> InferenceError:
    # Triton's message for this parameter has no full stop.
    end = "" if name == "classification" else "."
    return _invalid(f"invalid value type for '{name}' parameter, expected {expected}{end}")


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)
