# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A request to a model under test, as a client would make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.request_parameters import read_parameters
from pyruntime.runtime.requests.types import InferRequest
from pyruntime.testing.tensors import to_input


class RequestOptions(TypedDict, total=False):
    """The properties of a request besides its inputs; all are optional, as for `Request`."""

    request_id: str
    parameters: Mapping[str, str | int | bool | float] | None
    requested_outputs: Sequence[str] | None
    correlation_id: int | str
    sequence_start: bool
    sequence_end: bool
    timeout: int


class Request:
    """One request. It may be sent any number of times, to any models."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        *,
        request_id: str = "",
        parameters: Mapping[str, str | int | bool | float] | None = None,
        requested_outputs: Sequence[str] | None = None,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        timeout: int = 0,
    ) -> None:
        """`inputs` are arrays by name, or lists, which get the datatype in the model's configuration.

        `timeout` is in microseconds; it has no effect except that the model can read it. `requested_outputs` defaults
        to all outputs.
        """
        self.inputs = dict(inputs)
        self.request_id = request_id
        self.parameters = dict(parameters or {})
        self.requested_outputs = list(requested_outputs) if requested_outputs is not None else None
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.timeout = timeout
        self.cancelled = False

    def __repr__(self) -> str:
        return f"<Request {self.request_id!r} {list(self.inputs)}{' cancelled' if self.cancelled else ''}>"

    def cancel(self) -> None:
        """Cancel the request: the model's `is_cancelled()` is true from now on.

        Thread-safe. May be called before the request is sent, so that the model sees it from the start.
        """
        self.cancelled = True

    def checked(self, spec: ModelSpec) -> InferRequest:
        """The validated request. Raises InferenceError with the server's message if the server would refuse it."""
        request = InferRequest(
            spec.name,
            id=self.request_id,
            inputs=[to_input(name, value, spec.inputs.get(name)) for name, value in self.inputs.items()],
            requested_outputs=self.requested_outputs or None,
            sequence_id=self.correlation_id,
            sequence_start=self.sequence_start,
            sequence_end=self.sequence_end,
            timeout_us=self.timeout,
        )
        read_parameters(request, self.parameters)
        check_request(spec, request)
        return request
