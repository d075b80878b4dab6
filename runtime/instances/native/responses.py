# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts responses of native backends to InferResponses. (pure)

A backend's thread that sends a response waits while the client has not taken too many of the earlier ones: see
runtime/native/triton/response_window.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job, Respond, discard
from pyruntime.runtime.instances.native.instance_spec import NativeHandle
from pyruntime.runtime.instances.native.outputs import NativeOutputs
from pyruntime.runtime.memory.client_outputs import put_in_place
from pyruntime.runtime.requests.types import InferResponse, OutputTensor, Parameter
from pyruntime.utils.errors import Code, InferenceError

if TYPE_CHECKING:
    from pyruntime.runtime.native._triton import Buffer

# Name, datatype, shape and contents of an output.
NativeOutput: TypeAlias = "tuple[str, str, list[int], Buffer]"
Outcome = InferResponse | InferenceError

NO_RESPONSE = "the model ended the request without a response"
_NO_PARAMETERS: dict[str, Parameter] = {}


class NativeResponses:
    """Makes the responses of one version of a model."""

    def __init__(
        self, spec: ModelSpec, version: int, shared: NativeOutputs, check: Callable[[Sequence[OutputTensor]], None]
    ) -> None:
        """`shared` is the shared memory of the instance. `check` is called with outputs unlike those before them."""
        self._spec = spec
        self._version = version
        self._shared = shared
        self._check = check
        # The names, datatypes and shapes that were checked last: those of most responses are the same.
        self._checked: list[tuple[str, str, list[int]]] = []
        self._reshapes = any(output.reshape is not None for output in spec.outputs.values())

    def outcome(
        self,
        job: Job,
        failure: tuple[int, str] | None,
        outputs: list[NativeOutput] | None,
        parameters: dict[str, Parameter] | None,
    ) -> Outcome | None:
        """What the backend has sent for a job: an error, a response (see `make`), or neither of them."""
        if failure is not None:
            return InferenceError(failure[1], Code(failure[0]))
        return None if outputs is None else self.make(job, outputs, parameters)

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
        described = [output[:3] for output in outputs]
        if described != self._checked:
            self._checked = described
            self._check(response.outputs)
        if self._shared.region is not None:
            self._shared.share(response, [data for _, _, _, data in outputs])
        if job.client is None or not job.client.places:
            return response
        try:
            return put_in_place(response, job.client)
        except InferenceError as exc:
            return exc


class RescheduledResponses:
    """The `respond` of a job from the time on when its backend had it executed again.

    The backend may still send responses of an earlier execution while the job queues or is executed, possibly by
    another instance. The last response of any execution is the last one for the client; later ones are discarded.
    `kept` is the response of a model that is not decoupled, until the backend says that it is the last.
    """

    __slots__ = ("_is_decoupled", "_respond", "_responses", "kept")

    def __init__(self, respond: Respond, responses: NativeResponses, is_decoupled: bool) -> None:
        self._respond = respond
        self._responses = responses
        self._is_decoupled = is_decoupled
        self.kept: Outcome | None = None

    def __call__(self, outcome: Outcome | None, final: bool) -> None:
        """See execution.job.Respond."""
        respond = self._respond
        if final:
            self._respond = discard
        respond(outcome, final)

    def earlier(
        self,
        job: Job,
        final: bool,
        failure: tuple[int, str] | None,
        outputs: list[NativeOutput] | None,
        parameters: dict[str, Parameter] | None,
    ) -> None:
        """The backend has sent a response of an earlier execution of the job."""
        if self._respond is discard:
            return  # the memory of the client may be gone
        outcome = self._responses.outcome(job, failure, outputs, parameters)
        if self._is_decoupled:
            self(outcome, final)
            return
        self.kept = outcome or self.kept
        if final:
            self(self.kept or InferenceError(NO_RESPONSE), True)


class _Take:
    """The `take` and `release` of one of several responses to a request: the first call tells the backend."""

    __slots__ = ("_free", "_handle", "_serial")

    def __init__(self, handle: NativeHandle, serial: int, free: Callable[[], None]) -> None:
        """`free` is the response's own `release`."""
        self._handle: NativeHandle | None = handle
        self._serial = serial
        self._free = free

    def take(self) -> None:
        """See InferResponse."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.take(self._serial)

    def release(self) -> None:
        """See InferResponse."""
        self.take()
        self._free()


def take_with(handle: NativeHandle, serial: int, outcome: object) -> None:
    """Tell the backend when the client takes a response to the request `serial`. An error counts as taken at once."""
    if isinstance(outcome, InferResponse):
        taking = _Take(handle, serial, outcome.release)
        outcome.take = taking.take
        outcome.release = taking.release if outcome.regions else taking.take
    else:
        handle.take(serial)
