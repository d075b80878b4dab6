# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts responses of native backends to InferResponses. (pure)

A backend's thread that sends a response waits while the client has not taken too many of the earlier ones: see
runtime/native/triton/response_window.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.native.instance_spec import NativeHandle
from pyruntime.runtime.instances.native.memory import put_in_place
from pyruntime.runtime.requests.types import InferResponse, OutputTensor, Parameter
from pyruntime.utils.errors import InferenceError

if TYPE_CHECKING:
    from pyruntime.runtime.native._triton import Buffer

# Name, datatype, shape and contents of an output.
NativeOutput: TypeAlias = "tuple[str, str, list[int], Buffer]"
Outcome = InferResponse | InferenceError

_NO_PARAMETERS: dict[str, Parameter] = {}


class NativeResponses:
    """Makes the responses of one version of a model."""

    def __init__(self, spec: ModelSpec, version: int) -> None:
        self._spec = spec
        self._version = version
        self._reshapes = any(output.reshape is not None for output in spec.outputs.values())

    def make(
        self,
        job: Job,
        outputs: list[NativeOutput],
        parameters: dict[str, Parameter] | None,
    ) -> Outcome:
        """The response to a job, or the error if it cannot be written to the client's shared memory."""
        spec = self._spec
        if self._reshapes:
            outputs = [(name, kind, client_shape(spec, name, shape), data) for name, kind, shape, data in outputs]
        response = InferResponse(
            spec.name,
            self._version,
            job.id,
            [OutputTensor(name, datatype, shape, memoryview(data)) for name, datatype, shape, data in outputs],
            parameters or _NO_PARAMETERS,
        )
        if job.client is None or not job.client.places:
            return response
        try:
            return put_in_place(response, job.client)
        except InferenceError as exc:
            return exc


class _Take:
    """The `take` and `release` of one of several responses to a request: the first call tells the backend."""

    __slots__ = ("_handle", "_serial")

    def __init__(self, handle: NativeHandle, serial: int) -> None:
        self._handle: NativeHandle | None = handle
        self._serial = serial

    def take(self) -> None:
        """See InferResponse."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.take(self._serial)


def take_with(handle: NativeHandle, serial: int, outcome: object) -> None:
    """Tell the backend when the client takes a response to the request `serial`. An error counts as taken at once."""
    if isinstance(outcome, InferResponse):
        outcome.take = outcome.release = _Take(handle, serial).take
    else:
        handle.take(serial)
