# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of a native instance.

`execute` returns as soon as the backend's Execute has returned. It returns the responses until then; senders send all
later ones. A request is kept until the backend releases it: its memory is in use until then, as the stub reports to the
host.

The states of a sequence are inputs, and go to the host with a response. The backend may update them until it releases
the request, so the last response waits for that. A state that it changes in place lies in memory of the host, and goes
nowhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyruntime.backends.native.events import LOOK_S, Events
from pyruntime.backends.native.gpu_outputs import NativeGpuOutputs
from pyruntime.backends.native.tensors import Inputs, NativeOutput, NativeResponse, native_tensor, response_of
from pyruntime.runtime.native.parameters import Parameter
from pyruntime.stub.host import Host
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    TritonError,
    TritonModelException,
)
from pyruntime.stub.pb_utils.sender import InferenceResponseSender
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.errors import Code, LocalError
from pyruntime.utils.request_codec import PLACES

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

_NO_RESPONSE = "the model ended the request without a response"
_DROPPED = (
    "a response was dropped: it was sent when Execute had returned, to a request that was released to be executed again"
)
_STATES_WITHOUT_RESPONSE = (
    "the model updated a state of the sequence and sent no response after it, with which the state goes where the "
    "model runs in a process"
)
_TOO_LATE = "a request can be released to be executed again during Execute only, where its model runs in a process"


class Job:
    """One request. The extension holds it for as long as the backend may answer it."""

    __slots__ = (
        "batches",
        "is_answered",
        "is_cancelled",
        "is_rescheduled",
        "is_returned",
        "is_sending",
        "last",
        "memory",
        "number",
        "request",
        "response",
        "sender",
        "serial",
        "states",
        "waiting",
    )

    def __init__(self, batches: Batches, request: InferenceRequest, sender: InferenceResponseSender | None) -> None:
        self.batches = batches
        # Until the backend has released it.
        self.request: InferenceRequest | None = request
        self.memory: list[object] = []
        # The number of the request for the host, and that for the extension.
        self.serial = request._serial
        self.number = 0
        # Sends its responses. None while `execute` can still return the response, which decoupled models do not do.
        self.sender = sender
        # The response of a model that is not decoupled, until it is final.
        self.response: InferenceResponse | None = None
        # The last response, if it waits for the backend to release the request, in a tuple; and the states, by their
        # names, that no response has brought yet.
        self.last: tuple[InferenceResponse | None] | None = None
        self.states: dict[str, Tensor] = {}
        self.is_answered = False
        self.is_returned = False
        self.is_cancelled = False
        self.is_rescheduled = False
        # Responses that wait until the client has taken earlier ones, and whether a thread sends these.
        self.waiting: deque[tuple[InferenceResponse | None, bool]] = deque()
        self.is_sending = False


class Batches:
    """See the module."""

    def __init__(
        self,
        events: Events,
        host: Host,
        gpu_outputs: NativeGpuOutputs,
        decoupled: bool,
        states: Mapping[str, str],
        run: Callable[..., object],
        create: Callable[[Batches], _triton.Instance],
    ) -> None:
        """`states` are the names of the states' outputs, each with that of the input that is changed in place, or "".

        `run` runs a function in a thread that may block; `create` makes the extension's instance.
        """
        self._events = events
        self._host = host
        self._gpu_outputs = gpu_outputs
        self._decoupled = decoupled
        self._states = states
        self._run = run
        self._inputs = Inputs()
        # Guards the responses that wait for clients. A thread that sends them must not need the lock of the events: the
        # model's thread holds that while the backend executes, and the backend may wait for earlier responses.
        self._sending = threading.Lock()
        self._number = 1
        self._is_executing = False
        self._open: dict[Job, None] = {}
        self.handle = create(self)

    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse | None] | None:
        """Have the backend execute a batch. Returns the result of TritonPythonModel.execute."""
        jobs = [self._job(request) for request in requests]
        with self._events.lock:
            ready, wires = self._prepared(jobs)
            if ready:
                self._open.update(dict.fromkeys(ready))
                self._events.wait(lambda: self._begin(ready, wires), lambda: not self._is_executing)
            outcomes = [self._outcome(job, request) for job, request in zip(jobs, requests, strict=True)]
        return None if self._decoupled else outcomes

    def _begin(self, jobs: list[Job], wires: list[list[object]]) -> None:
        try:
            self.handle.execute(jobs, wires, jobs[0].number, 0)
        except BaseException:  # the batch fails as a whole
            for job in jobs:
                job.is_answered = True
                del self._open[job]
            raise
        self._is_executing = True

    def _job(self, request: InferenceRequest) -> Job:
        return Job(self, request, request.get_response_sender() if self._decoupled else None)

    def _prepared(self, jobs: list[Job]) -> tuple[list[Job], list[list[object]]]:
        """The jobs that can be executed, and their requests as the extension reads them. The others are answered."""
        ready, wires = [], []
        for job in jobs:
            request = job.request
            assert request is not None  # it is not released yet
            try:
                wire = self._inputs.encode(request, job.memory)
            except (LocalError, TritonModelException) as exc:
                self._answer(job, _failed(Code.UNAVAILABLE, str(exc)), True)
            else:
                wire[PLACES] = self._gpu_outputs.allowed(request)
                wires.append(wire)
                job.number, self._number = self._number, self._number + 1
                ready.append(job)
        return ready, wires

    def look(self) -> float | None:
        """Cancel the jobs whose requests are cancelled. Returns after how many seconds to look again, if at all."""
        for job in self._open:
            if not job.is_cancelled and self._host.is_cancelled(job.serial):
                job.is_cancelled = True
                self.handle.cancel(job.number)
        return LOOK_S if self._open else None

    # Events of the backend.

    def state_updated(self, job: Job, name: str, datatype: str, shape: Sequence[int], contents: _triton.Buffer) -> None:
        """The backend has updated a state, or releases a request whose state it changes in place."""
        request = job.request
        assert request is not None  # states are not updated later
        changed, size = self._states[name], len(contents)
        if not any(tensor[0] == changed and tensor[4] == size for tensor in request._tensors):
            job.states[name] = native_tensor(name, datatype, shape, contents)

    def responded(
        self,
        job: Job,
        final: bool,
        failure: tuple[int, str] | None,
        outputs: Sequence[NativeOutput] | None,
        parameters: Mapping[str, Parameter] | None,
    ) -> None:
        """The backend has sent a response, or has said that no further response follows."""
        if job.is_answered:
            if job.is_rescheduled:
                LOGGER.warning(_DROPPED)
            return
        response = None
        if failure is not None:
            response = _failed(*failure)
        elif outputs is not None:
            response = response_of(outputs, parameters)
        if self._decoupled:
            self._answer(job, response, final)
            return
        if response is not None:
            job.response = response
        if final:
            self._answer(job, job.response or _failed(Code.INTERNAL, _NO_RESPONSE), True)

    def released(self, job: Job, reschedule: bool) -> None:
        """The backend has released a request, or wants to execute it again."""
        request, job.request = job.request, None
        job.memory.clear()
        if job.last is not None:
            (response,), job.last = job.last, None
            self._answer(job, response, True)
        if not reschedule or job.is_answered or request is None:
            return
        if job.states:
            self._answer(job, None, True)
        elif not job.is_returned:
            job.is_rescheduled = True
            del self._open[job]
            request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            self._answer(job, _failed(Code.UNSUPPORTED, _TOO_LATE), True)

    def answered(
        self,
        job: Job,
        failure: tuple[int, str] | None,
        outputs: Sequence[NativeOutput] | None,
        parameters: Mapping[str, Parameter] | None,
        *_: object,
    ) -> None:
        """The backend has sent the final response and released the request."""
        self.released(job, False)
        self.responded(job, True, failure, outputs, parameters)

    def executed(self) -> None:
        """Execute has returned."""
        self._is_executing = False

    # Answering.

    def _outcome(self, job: Job, request: InferenceRequest) -> InferenceResponse | None:
        """The result of `execute` for a request."""
        job.is_returned = True
        if job.is_rescheduled:
            if not job.is_answered:
                job.is_answered = True
                return None
            request.set_release_flags(TRITONSERVER_REQUEST_RELEASE_ALL)  # its last response was sent
        if not job.is_answered:
            job.sender = job.sender or request.get_response_sender()
            return None
        response, job.response = job.response, None
        return response

    def _answer(self, job: Job, response: InferenceResponse | None, final: bool) -> None:
        if final and self._states and job.request is not None:
            job.last = (response,)
            return
        if job.states:
            states, job.states = [*job.states.values()], {}
            if isinstance(response, NativeResponse):
                response.update_states(states)
            elif response is None:
                response = _failed(Code.UNSUPPORTED, _STATES_WITHOUT_RESPONSE)
        if final:
            job.is_answered = True
            self._open.pop(job, None)
        sender = job.sender
        if sender is None:
            job.response = response  # for `execute` to return
            return
        if self._has_to_wait(job, sender, response, final):
            return
        self._send(job, sender, response, final)
        if final:
            job.sender = None  # the extension may keep the job

    def _has_to_wait(
        self, job: Job, sender: InferenceResponseSender, response: InferenceResponse | None, final: bool
    ) -> bool:
        """Whether a response must wait for the client. If so, a thread sends it later."""
        with self._sending:
            if not job.is_sending:
                if response is None or final or self._host.has_room(job.serial):
                    return False
                job.is_sending = True
                self._run(self._send_waiting, job, sender)
            job.waiting.append((response, final))
            return True

    def _send_waiting(self, job: Job, sender: InferenceResponseSender) -> None:
        """Send the waiting responses of a job, in a thread of their own."""
        final = False
        while not final:
            with self._sending:
                if not job.waiting:
                    job.is_sending = False
                    return
                response, final = job.waiting.popleft()
            self._send(job, sender, response, final)
        job.sender = None

    def _send(self, job: Job, sender: InferenceResponseSender, response: InferenceResponse | None, final: bool) -> None:
        sender.send(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
        if not final:
            self.handle.take(job.number)


def _failed(code: int, message: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(message, Code(code)))
