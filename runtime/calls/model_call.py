# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One call from a model to another: the request becomes a job of the callee, and the job's responses are the call's.

Tensors are passed by reference: the job refers to the regions that its inputs lie in, and each response names the
region of its outputs (see tensors.py). Callers translate their own messages into a ModelCall, and its responses back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pyruntime.runtime.calls.call_request import ValidatedSignatures
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.deadlock import Waiting, explain_deadlock
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.requests.types import InferRequest, Slot, free_slots
from pyruntime.utils.errors import Code, InferenceError

# The limit of open calls of one stub, or of all native code in the server. A model that exceeds it does not wait for
# its calls.
CALLS_MAX = 10_000
# How long a call may queue behind the batch that made it, in seconds, if the host cannot see whether the batch waits
# for the call. Native code that does not wait for its calls returns from Execute long before. And how often the host
# looks again at a call that waits for resources.
DEADLOCK_AFTER_S = 5.0

_IS_DECOUPLED = (
    "Model {0} - Error when running inference: Model {0} is using the decoupled. The current BLS request call doesn't "
    "support models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
    "'async_exec' calls for decoupled models.'"
)


class Callee(Protocol):
    """A model version that can be called. `workers` are all threads that execute its requests.

    `is_limited` says whether its requests wait for resources that other models may hold. `on_gpus` says where tensors
    may lie on GPUs; it is None if all of them are in main memory.
    """

    spec: ModelSpec
    version: int
    memory: RequestMemory
    validated: ValidatedSignatures
    on_gpus: TensorPlaces | None

    @property
    def workers(self) -> Sequence[Waiting]: ...
    @property
    def is_limited(self) -> bool: ...

    def expect(self) -> None:
        """See ModelVersion."""

    def arrived(self) -> None:
        """See ModelVersion."""

    def accept(self, request: InferRequest, respond: Respond) -> Job:
        """See ModelVersion."""

    def start(self, job: Job) -> None:
        """See ModelVersion."""

    def cancel(self, job: Job) -> None:
        """See ModelVersion."""

    def expedite(self, job: Job) -> Sequence[str]:
        """See ModelVersion."""


class CallTracer(Protocol):
    """Records calls in the traces of the requests that cause them."""

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """Record that a call for a request with this trace context is about to start."""


class OutgoingRequest(Protocol):
    """The request of a call. `trace` is the context of the trace that it belongs to, "" for none."""

    @property
    def trace(self) -> str: ...

    def make_job(self, callee: Callee, slots: list[Slot], respond: Respond) -> Job:
        """The job, which owns `slots` from then on. Raises InferenceError if the callee does not accept the request."""


class ModelCall:
    """See the module. `callee` and `job` are None until the call starts.

    All methods belong to the event loop's thread.
    """

    __slots__ = ("_on_response", "_request", "_review", "_slots", "_tracer", "callee", "is_cancelled", "job")

    def __init__(self, tracer: CallTracer, request: OutgoingRequest, slots: list[Slot], on_response: Respond) -> None:
        """`slots` are the memory of the inputs: the call frees them if it does not become a job.

        `on_response` is called as execution.job.Respond says; the receiver releases the InferResponses.
        """
        self.callee: Callee | None = None
        self.job: Job | None = None
        self.is_cancelled = False
        self._tracer = tracer
        self._request = request
        self._slots = slots
        self._on_response = on_response
        # The next look for a deadlock, while the job waits for resources.
        self._review: asyncio.TimerHandle | None = None

    def start(self, callee: Callee) -> None:
        """Have a model execute the request.

        Raises InferenceError if it refuses: the inputs are free then, and `on_response` is not called. A call that was
        cancelled before fails with CANCELLED.
        """
        request = self._request
        try:
            if self.is_cancelled:
                raise InferenceError("", Code.CANCELLED)
            job = request.make_job(callee, self._slots, self._on_response)
        except InferenceError:
            self.free()
            raise
        self.callee = callee
        self.job = job
        if request.trace:
            self._tracer.trace_call(callee, job, request.trace)
        callee.start(job)  # a job that is refused frees its memory

    def free(self) -> None:
        """Free the inputs of a call that does not start."""
        slots, self._slots = self._slots, []
        free_slots(slots)

    def cancel(self) -> None:
        """Cancel the job of the call, if it has started; it is answered nevertheless. Idempotent."""
        if self.is_cancelled:
            return
        self.is_cancelled = True
        if self.callee is not None and self.job is not None:
            self.callee.cancel(self.job)

    # Deadlocks: see execution/deadlock.py.

    def servers(self) -> tuple[Sequence[Waiting], str]:
        """The workers that could serve the call now, and the name of their model. The call must have started."""
        callee, job = self.callee, self.job
        assert callee is not None
        assert job is not None
        workers = callee.workers if job.instance is None else [job.instance.worker_of(job)]
        return workers, callee.spec.name

    def refuse_deadlock(self, caller: str, subject: str) -> None:
        """Fail the call if it queues in a deadlock. Its caller, a worker of model `caller`, waits for it.

        `subject` is the name of the call in the message.
        """
        job, callee = self.job, self.callee
        if job is None or callee is None or job.instance is not None:
            return
        on_response = self._on_response
        lacking: Sequence[str] = ()
        cycle = self._cycle(caller)
        if cycle and callee.is_limited:
            lacking = callee.expedite(job)
            cycle = self._cycle(caller)
        if not cycle:
            if callee.is_limited and job.instance is None:
                self._review_later(job, caller, subject)
            return
        more = "".join(f", or the server more of resource '{name}'" for name in lacking)
        refusal = InferenceError(
            f"{subject} would wait for ever, because every instance that could serve it waits for this one: {cycle}. "
            f"Give one of these models more instances{more}",
            Code.UNAVAILABLE,
        )
        job.respond = lambda outcome, final: on_response(refusal, True)
        if job.trace is not None:
            job.respond = job.trace.answering(job.respond)
        callee.cancel(job)

    def _review_later(self, job: Job, caller: str, subject: str) -> None:
        """Look again as long as the job waits for resources: others may be granted them that wait for the caller."""
        if self._review is None:
            on_free = job.on_free

            def freed(each: Job) -> None:
                if self._review is not None:
                    self._review.cancel()
                if on_free is not None:
                    on_free(each)

            job.on_free = freed
        loop = asyncio.get_running_loop()
        self._review = loop.call_later(DEADLOCK_AFTER_S, self.refuse_deadlock, caller, subject)

    def refuse_deadlock_later(self, caller: str, subject: str, is_waited_for: Callable[[], bool]) -> None:
        """As `refuse_deadlock`, after DEADLOCK_AFTER_S and only if the caller may still wait for the call then."""

        def review() -> None:
            if is_waited_for():
                self.refuse_deadlock(caller, subject)

        if self._cycle(caller):
            asyncio.get_running_loop().call_later(DEADLOCK_AFTER_S, review)

    def _cycle(self, caller: str) -> str:
        """The cycle of models if the call queues in a deadlock; "" otherwise."""
        callee, job = self.callee, self.job
        if callee is None or job is None or job.instance is not None:
            return ""
        return explain_deadlock(caller, callee.spec.name, callee.workers)


# The errors of calls.


def too_many_calls() -> InferenceError:
    """The error of a call beyond CALLS_MAX."""
    return InferenceError(f"more than {CALLS_MAX} calls are under way", Code.UNAVAILABLE)


def call_failure(model: str, cause: object) -> InferenceError:
    """The error of a Python model's call that does not start, in Triton's words."""
    return InferenceError(f"Model {model} - Error when running inference: {cause}")


def not_ready(model: str) -> InferenceError:
    """The error of a Python model's call to a model that does not serve, in Triton's words."""
    return call_failure(model, f"Failed for execute the inference request. Model '{model}' is not ready.")


def is_decoupled(model: str) -> InferenceError:
    """The error of a call for one response to a model that may send any number, in Triton's words."""
    return InferenceError(_IS_DECOUPLED.format(model))
