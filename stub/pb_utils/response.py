# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceResponse`: the response to one request."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Set, Type, TypeVar, Union

from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.stub.pb_utils.tensor import Tensor

_Response = TypeVar("_Response", bound="InferenceResponse")


def check_parameters(parameters: Any) -> str:
    """Parameters as JSON text, "" for none. Raises TritonModelException, in Triton's words."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect {dict}, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TritonModelException(f"parameter '{key}' is {value}, which is no 64-bit integer")
    # Text that UTF-8 cannot encode, such as a lone surrogate in a file name, is escaped.
    return json.dumps(parameters, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() if parameters else ""


class InferenceResponse:
    """The outputs of one request, or its error. Outputs and parameters are dropped when there is an error."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Dict[str, Union[bool, int, str]]] = None,
    ) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError, found {type(error)}")
        self._error = error
        self._parameters = "" if parameters is None or error is not None else check_parameters(parameters)
        self._output_tensors: List[Tensor] = [] if error is not None else list(output_tensors)
        for tensor in self._output_tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):  # one on a GPU is another class
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError(f"output_tensors must be pb_utils.Tensor objects, found {type(tensor)}")

    @classmethod
    def _from_wire(cls: Type[_Response], outputs: List[Tensor], parameters: str) -> _Response:
        """A response of another model."""
        response = cls.__new__(cls)
        response._error = None
        response._parameters = parameters
        response._output_tensors = outputs
        return response

    def __repr__(self) -> str:
        return f"<InferenceResponse {self._error or self._output_tensors}>"

    def output_tensors(self) -> List[Tensor]:
        """The outputs; empty if there is an error."""
        return self._output_tensors

    def _states(self, names: Set[str]) -> List[Tensor]:
        """The outputs that are states of the request's sequence, whose outputs have these names."""
        return [tensor for tensor in self._output_tensors if tensor._name in names]

    def has_error(self) -> bool:
        """Whether the request failed."""
        return self._error is not None

    def error(self) -> Union[TritonError, Any]:
        """The error, or None. Its type has no None, because models call it after `has_error()`."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters as a JSON object in text."""
        return self._parameters or "{}"
