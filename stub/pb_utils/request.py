# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceRequest`: what `execute` gets a list of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Set, Union

from pyruntime.stub.pb_utils.tensor import Tensor

if TYPE_CHECKING:
    import mmap


# Places in a request on the wire: see utils/messages.py.
_ID, _CORRELATION_ID, _FLAGS, _TIMEOUT_US, _OUTPUTS, _PARAMETERS, _TENSORS = range(7)


class InferenceRequest:
    """One request, as the host sent it. Tensors are made when they are first asked for."""

    __slots__ = ("_inputs", "_outputs", "_region", "_wire")

    # As it came (see utils/messages.py): most of it is never asked for.
    _wire: List[Any]
    _region: mmap.mmap
    _outputs: Set[str]
    _inputs: Optional[List[Tensor]]

    @classmethod
    def _from_wire(cls, region: mmap.mmap, wire: List[Any], all_outputs: Set[str]) -> InferenceRequest:
        """The request that `wire` describes, to a model with these outputs."""
        request = cls.__new__(cls)
        request._wire = wire
        request._region = region
        request._outputs = all_outputs if wire[_OUTPUTS] is None else set(wire[_OUTPUTS])
        request._inputs = None
        return request

    def __repr__(self) -> str:
        return f"<InferenceRequest {self._wire[_ID]!r} {self.inputs()}>"

    def inputs(self) -> List[Tensor]:
        """The inputs that came; optional ones may be missing."""
        inputs = self._inputs
        if inputs is None:
            region = self._region
            inputs = self._inputs = [Tensor._from_region(region, tensor) for tensor in self._wire[_TENSORS]]
        return inputs

    def request_id(self) -> str:
        """The client's id for the request, "" if it gave none."""
        request_id: str = self._wire[_ID]
        return request_id

    def correlation_id(self) -> Union[int, str]:
        """The sequence's id: a str if the client's was one; 0 if there is none."""
        correlation_id: Union[int, str] = self._wire[_CORRELATION_ID]
        return correlation_id

    def requested_output_names(self) -> Set[str]:
        """Names of the outputs the client wants; all of the model's if it named none."""
        return set(sorted(self._outputs))

    def flags(self) -> int:
        """Bits of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        flags: int = self._wire[_FLAGS]
        return flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags."""
        self._wire[_FLAGS] = flags

    def timeout(self) -> int:
        """The client's timeout in microseconds; 0 if there is none."""
        timeout_us: int = self._wire[_TIMEOUT_US]
        return timeout_us

    def parameters(self) -> str:
        """The client's own parameters as a JSON object in text."""
        return self._wire[_PARAMETERS] or "{}"
