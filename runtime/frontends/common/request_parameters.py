# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The "id" and the "parameters" of an inference request. (pure)

Parameters that Triton itself understands become fields of the request; all others go to the model as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyruntime.runtime.frontends.common.json_document import invalid, json_name, shown
from pyruntime.runtime.requests.types import InferRequest, Parameter
from pyruntime.utils.errors import Code, InferenceError

# A model reads its parameters from a JSON string, one by one. No honest request has more of them.
PARAMETERS_MAX = 1024

# Triton keeps integer parameters in signed 64-bit integers,
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# and sequence ids, priorities and timeouts in unsigned ones.
UINT64_MAX = 2**64 - 1

# The longest name of a sequence in bytes, as in Triton.
SEQUENCE_NAME_MAX = 128


def read_id(value: object) -> str:
    """The id of a request, from the JSON value `value`. Raises InferenceError (INVALID_ARG)."""
    if type(value) is not str:
        raise invalid(f"'id' must be a string, got {json_name(value)}")
    return value


def read_parameters(request: InferRequest, parameters: object) -> bool:
    """Put the JSON value `parameters` into `request`. Returns whether outputs are binary by default.

    `sequence_id`, `sequence_start`, `sequence_end`, `priority` and `timeout` (in microseconds) become fields of the
    request. Raises InferenceError, INVALID_ARG among others for names that start with `triton_`, and UNSUPPORTED where
    the name of a sequence is too long.
    """
    if type(parameters) is not dict:
        raise invalid(f"'parameters' must be an object, got {json_name(parameters)}")
    _check_count(parameters)
    binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary = _bool(key, value)
        elif key == "sequence_id":
            request.sequence_id = sequence_name(value) if type(value) is str else _unsigned(key, value)
        elif key == "sequence_start":
            request.sequence_start = _bool(key, value)
        elif key == "sequence_end":
            request.sequence_end = _bool(key, value)
        elif key == "priority":
            request.priority = _unsigned(key, value)
        elif key == "timeout":
            request.timeout_us = _unsigned(key, value)
        elif key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            request.parameters[key] = _custom(key, value)
    return binary


def sequence_name(name: str) -> str:
    """Check the name of a sequence, and return it. Raises InferenceError (UNSUPPORTED) if it is too long."""
    if len(name.encode()) > SEQUENCE_NAME_MAX:
        raise InferenceError(
            f"string correlation ID cannot be longer than {SEQUENCE_NAME_MAX} characters", Code.UNSUPPORTED
        )
    return name


def read_custom_parameters(request: InferRequest, parameters: Mapping[str, object]) -> None:
    """Put all `parameters` into `request` as they are, for the model. The server acts on none of them.

    Raises InferenceError (INVALID_ARG) for values that are neither strings nor numbers nor booleans, and for too many.
    """
    _check_count(parameters)
    for key, value in parameters.items():
        request.parameters[key] = _custom(key, value)


def _check_count(parameters: Mapping[str, object]) -> None:
    if len(parameters) > PARAMETERS_MAX:
        raise invalid(f"the request has {len(parameters)} parameters, expected at most {PARAMETERS_MAX}")


def _bool(key: str, value: object) -> bool:
    if type(value) is not bool:
        raise invalid(f"parameter '{key}' must be true or false, got {shown(value)}")
    return value


def _unsigned(key: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        kind = "a string or an integer" if key == "sequence_id" else "an integer"
        raise invalid(f"parameter '{key}' must be {kind} from 0 to {UINT64_MAX}, got {shown(value)}")
    return value


def _custom(key: str, value: object) -> Parameter:
    if type(value) is int:
        # As in Triton, where an integer that is too large is read as a double.
        return value if INT64_MIN <= value <= INT64_MAX else float(value)
    if isinstance(value, (str, bool, float)):
        return value
    raise invalid(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")
