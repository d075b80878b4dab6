# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.InferenceRequest`: what `execute` gets a list of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Set, Union

from pyruntime.stub.pb_utils.tensor import Tensor

if TYPE_CHECKING:
    import mmap


class InferenceRequest:
    """One request, as the host sent it. Tensors are made when they are first asked for."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_id",
        "_inputs",
        "_outputs",
        "_parameters",
        "_region",
        "_timeout_us",
        "_wire",
    )

    _id: str
    _correlation_id: Union[int, str]
    _flags: int
    _timeout_us: int
    _outputs: Set[str]
    _parameters: str
    _region: mmap.mmap
    _wire: List[Any]
    _inputs: Optional[List[Tensor]]

    @classmethod
    def _from_wire(cls, region: mmap.mmap, wire: List[Any], all_outputs: Set[str]) -> InferenceRequest:
        """The request that `wire` (see utils/messages.py) describes."""
        request = cls.__new__(cls)
        request._id, request._correlation_id, request._flags, request._timeout_us, outputs, parameters, tensors = wire
        request._outputs = all_outputs if outputs is None else set(outputs)
        request._parameters = parameters
        request._region = region
        request._wire = tensors
        request._inputs = None
        return request

    def __repr__(self) -> str:
        return f"<InferenceRequest {self._id!r} {self.inputs()}>"

    def inputs(self) -> List[Tensor]:
        """The inputs that came; optional ones may be missing."""
        inputs = self._inputs
        if inputs is None:
            region = self._region
            inputs = self._inputs = [Tensor._from_region(region, tensor) for tensor in self._wire]
        return inputs

    def request_id(self) -> str:
        """The client's id for the request, "" if it gave none."""
        return self._id

    def correlation_id(self) -> Union[int, str]:
        """The sequence's id: a str if the client's was one; 0 if there is none."""
        return self._correlation_id

    def requested_output_names(self) -> Set[str]:
        """Names of the outputs the client wants; all of the model's if it named none."""
        return set(sorted(self._outputs))

    def flags(self) -> int:
        """Bits of TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags."""
        self._flags = flags

    def timeout(self) -> int:
        """The client's timeout in microseconds; 0 if there is none."""
        return self._timeout_us

    def parameters(self) -> str:
        """The client's own parameters as a JSON object in text."""
        return self._parameters or "{}"
