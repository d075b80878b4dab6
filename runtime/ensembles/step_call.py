# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One step of a request to an ensemble while it is under way: the call of its model, and its times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from pyruntime.runtime.calls.call_request import CallRequest, Version
from pyruntime.runtime.calls.model_call import Callee, CallTracer, ModelCall
from pyruntime.runtime.ensembles.graph import Step
from pyruntime.runtime.ensembles.run import Start
from pyruntime.runtime.ensembles.tensors import StepInputs, Tensor
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
    """The request of a step. `times` are those of its job, None until there is one."""

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
        self.times: StepTimes | None = None

    def job(self, callee: Version, slots: list[Slot], respond: Respond) -> Job:
        """See CallRequest."""
        job = super().job(callee, slots, respond)
        job.priority = self._priority
        for region in self.regions:
            if isinstance(region, ClientRegion):
                job.places = {}  # the inputs are a client's, the outputs are not
        self.times = job.trace = StepTimes(job.arrived_ns)
        return job


class TimedTracer:
    """Traces the calls of steps, and has their times recorded as well."""

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
    """See the module. `has_responded`: the model has sent a response."""

    __slots__ = ("has_responded", "iteration", "made", "step")

    def __init__(
        self, owner: StepOwner, tracer: CallTracer, start: Start[Tensor], request: StepRequest, inputs: StepInputs
    ) -> None:
        """`request` stays as `made`."""
        super().__init__(tracer, request, [inputs], partial(owner.responded, self))
        self.made = request
        self.step = start.step
        self.iteration = start.iteration
        self.has_responded = False
