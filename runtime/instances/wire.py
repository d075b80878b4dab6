# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Between the host's values and the arrays that messages carry (see utils/messages.py). (pure)

What a stub sends is not trusted: a model can write anything into its own process. Whatever does not check out here is
a PeerError, and the stub dies of it; nothing a stub says makes the host read outside that stub's own region.
"""

from __future__ import annotations

from typing import Any

import orjson

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.inference import InferRequest, OutputTensor, Parameter
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import PeerError

_SEQUENCE_START = 1
_SEQUENCE_END = 2
_SCALARS = (str, int, float, bool)


def request_wire(request: InferRequest) -> list[object]:
    """A request as the stub reads it. Its inputs must be in the request region already."""
    parameters = request.parameters
    return [
        request.id,
        request.sequence_id,
        (_SEQUENCE_START if request.sequence_start else 0) | (_SEQUENCE_END if request.sequence_end else 0),
        request.timeout_us,
        request.requested_outputs,
        orjson.dumps(parameters).decode() if parameters else "",
        [(tensor.name, tensor.datatype, tensor.shape, tensor.offset, len(tensor.data)) for tensor in request.inputs],
    ]


class OutputReader:
    """Reads the tensors of a response out of one stub's response region."""

    def __init__(self, spec: ModelSpec, region: memoryview) -> None:
        self._spec = spec
        self._region = region
        self._limit = len(region)
        self._reshapes = any(output.reshape is not None for output in spec.outputs.values())

    def outputs(self, tensors: list[Any]) -> tuple[list[OutputTensor], int]:
        """The outputs that `tensors` describe, their data views of the region; and their size in bytes, all together.

        Raises PeerError.
        """
        region = self._region
        limit = self._limit
        outputs = []
        total = 0
        try:
            for name, datatype, shape, offset, size in tensors:
                if datatype not in BY_NAME or not 0 <= offset <= offset + size <= limit:
                    raise PeerError(f"output '{name}' lies outside the response region, or has no datatype")
                if type(name) is not str or type(shape) is not list:
                    raise PeerError("an output has no name or no shape")
                for dim in shape:
                    if type(dim) is not int:
                        raise PeerError(f"output '{name}' has a dimension that is no integer")
                total += size
                if self._reshapes:
                    shape = client_shape(self._spec, name, shape)
                outputs.append(OutputTensor(name, datatype, shape, region[offset : offset + size]))
        except (TypeError, ValueError) as exc:
            raise PeerError("an output is not [name, datatype, shape, offset, size]") from exc
        return outputs, total


def response_parameters(text: Any) -> dict[str, Parameter]:
    """Response parameters from their JSON text. Raises PeerError."""
    if not text:
        return {}
    try:
        parameters: dict[str, Parameter] = orjson.loads(text)
    except (TypeError, ValueError) as exc:
        raise PeerError("response parameters are not JSON") from exc
    if type(parameters) is not dict or any(type(value) not in _SCALARS for value in parameters.values()):
        raise PeerError("response parameters are not a JSON object of strings, numbers and booleans")
    return parameters
