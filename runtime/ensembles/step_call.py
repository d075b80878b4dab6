# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One step of a request to an ensemble while it is under way: the call of its model, and its times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from pyruntime.runtime.calls.call_request import CallRequest, Version
from pyruntime.runtime.calls.model_call import Callee, CallTracer, ModelCall
from pyruntime.runtime.calls.tensors import CallInputs
from pyruntime.runtime.ensembles.graph import Step
from pyruntime.runtime.ensembles.run import Start
from pyruntime.runtime.ensembles.tensors import Source, Tensor
from pyruntime.runtime.ensembles.times import StepTimes
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.regions import ClientRegion, GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, Parameter, Slot
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import RequestOptions, TensorRef


class StepOwner(Protocol):
    """The request to the ensemble."""

    def responded(self, call: StepCall, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""


class StepRequest(CallRequest):
    """The request of a step. `times` are those of its job."""

    __slots__ = ("_priority", "times")

    def __init__(
        self,
        job: Job,
        step: Step,
        options: RequestOptions,
        parameters: dict[str, Parameter],
        tensors: list[TensorRef],
        regions: Sequence[GrantedRegion],
    ) -> None:
        """`job` is that of the ensemble."""
        super().__init__(step.model, step.version, job.id, options, parameters, tensors, regions, job.trace_context)
        self._priority = job.priority

    def job(self, callee: Version, slots: list[Slot], respond: Respond) -> Job:
        """See CallRequest."""
        job = super().job(callee, slots, respond)
        for region in job.regions:
            if isinstance(region, ClientRegion):
                job.places = {}  # the inputs are a client's, the outputs are not
        job.priority = self._priority
        self.times = job.trace = StepTimes(job.arrived_ns)
        return job


class _Tracer:
    """Has the times of a step recorded besides its trace."""

    def __init__(self, tracer: CallTracer) -> None:
        self._tracer = tracer

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """See CallTracer."""
        times = job.trace
        assert isinstance(times, StepTimes)  # by StepRequest
        self._tracer.trace_call(callee, job, context)
        if job.trace is not times:
            times.trace, job.trace = job.trace, times


class StepCall(ModelCall):
    """See the module. `batch` is the batch size of what the step makes, 0 if its model does not batch.

    `has_responded`: the model has sent a response.
    """

    __slots__ = ("_made", "_owner", "_sources", "has_responded", "iteration", "step")

    def __init__(self, owner: StepOwner, tracer: CallTracer, start: Start[Tensor], request: StepRequest) -> None:
        self._sources: list[Source] = [tensor.source for tensor in start.tensors.values() if tensor is not None]
        inputs = CallInputs(request.regions, self._end_use)
        super().__init__(_Tracer(tracer), request, [inputs], self._respond)
        self._owner = owner
        self._made = request
        self.step: Step = start.step
        self.iteration = start.iteration
        self.has_responded = False

    @property
    def batch(self) -> int:
        """See the class."""
        return self.job.rows if self.job is not None and self.step.is_batching else 0

    def ended(self) -> StepTimes:
        """The times of the step, which has ended."""
        times = self._made.times
        times.ended(time.monotonic_ns())
        return times

    def _end_use(self) -> None:
        for source in self._sources:
            source.end_use()

    def _respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        self._owner.responded(self, outcome, final)
