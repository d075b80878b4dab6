# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One step of a request to an ensemble while it is under way: the call of its model, and its times."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable
from typing import Protocol

from pyruntime.runtime.calls.call_request import CallRequest
from pyruntime.runtime.calls.model_call import Callee, CallTracer, ModelCall
from pyruntime.runtime.ensembles.graph import Step, fitting
from pyruntime.runtime.ensembles.marks import SequenceMark
from pyruntime.runtime.ensembles.run import Start
from pyruntime.runtime.ensembles.tensors import Source, end_reads
from pyruntime.runtime.ensembles.times import StepTimes
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.gpus.tensor_places import reads_of
from pyruntime.runtime.regions import ClientRegion, GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, OnGpu, Parameter, Slot
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.messages import INLINE_BYTES_MAX
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, OutputPlaceRef, RequestOptions, TensorRef

_LOG = logging.getLogger("pyruntime.ensembles")


# A small input: its name, datatype, shape, contents and size in bytes.
Contents = tuple[str, str, list[int], memoryview | bytes, int]


class Prepared:
    """The inputs of a step. The request refers to `inputs`, in `regions`; or it has `contents`, which differ each time.

    `kind` is that of CallRequest.make_job. `options` are those of a step in no sequence but that of its ensemble, whose
    request had the options `made_of`.
    """

    __slots__ = ("contents", "inputs", "kind", "made_of", "options", "regions")

    def __init__(
        self, inputs: list[TensorRef], contents: list[Contents], regions: list[GrantedRegion], kind: Hashable
    ) -> None:
        self.inputs = inputs
        self.contents = contents
        self.regions = regions
        self.kind = kind
        self.made_of: RequestOptions | None = None
        self.options: RequestOptions | None = None


class StepOwner(Protocol):
    """The request to the ensemble, and its job. `mark` is its own, and `parameters` are its decoded parameters."""

    job: Job
    mark: SequenceMark
    parameters: dict[str, Parameter]

    def places_on_gpu(self, step: Step) -> dict[str, OutputPlaceRef] | None:
        """The outputs of a step that may stay on the GPU of its model."""

    def responded(self, call: StepCall, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""


class TimedTracer:
    """Traces the calls of steps, and has their times recorded as well."""

    def __init__(self, tracer: CallTracer) -> None:
        self._tracer = tracer

    def trace_call(self, callee: Callee, job: Job, context: str) -> None:
        """See CallTracer."""
        times = job.trace
        assert isinstance(times, StepTimes)  # by StepCall
        self._tracer.trace_call(callee, job, context)
        if job.trace is not times:
            times.trace, job.trace = job.trace, times


class StepCall(ModelCall):
    """See the module. It is its own request, and the slot of its inputs, whose sources keep their regions open.

    `has_responded`: the model has sent a response. `times` are those of its job, None until there is one, and `mark` is
    the job's sequence.
    """

    __slots__ = ("_owner", "has_responded", "iteration", "mark", "step", "times", "trace")

    offset = 0
    view = memoryview(b"")

    def __init__(self, owner: StepOwner, tracer: CallTracer, start: Start[Source]) -> None:
        # Not super(), because every step makes one of these.
        ModelCall.__init__(self, tracer, self, [self], self._respond)
        self.step, self.iteration = start
        self.trace = owner.job.trace_context
        self.has_responded = False
        self.mark = owner.mark
        self.times: StepTimes | None = None
        self._owner = owner

    def make_job(self, callee: Callee, slots: list[Slot], respond: Respond) -> Job:
        """See OutgoingRequest. Small inputs are sent along with the request, all of them or none."""
        arrived_ns = time.monotonic_ns()
        owner, step = self._owner, self.step
        ensemble_job = owner.job
        source = self.iteration.tensors[step.reads[0]] if step.has_one_source else None
        kept = None if source is None else source.kept
        prepared: Prepared | None = None
        if source is not None and kept is not None:
            prepared = kept.derived.get((step, source.batch))
        if prepared is None:
            prepared = self._prepare(callee)
            if source is not None and kept is not None:
                kept.derive((step, source.batch), prepared)
        inputs, contents, regions = prepared.inputs, prepared.contents, prepared.regions
        if contents:
            inputs = []
            for name, datatype, shape, data, size in contents:
                copy = data if isinstance(data, bytes) else data.tobytes()
                inputs.append((name, datatype, shape, copy, size, MEMORY_CPU, 0))
        mark = self._mark() if source is None else source.mark
        self.mark = mark or owner.mark
        is_own = mark is None or mark == owner.mark
        options = prepared.options
        if options is None or not is_own or prepared.made_of is not ensemble_job.options:
            _, _, timeout_us, _, parameters = ensemble_job.options
            options = RequestOptions(*self.mark, timeout_us, step.requested, parameters)
            if is_own:
                prepared.made_of, prepared.options = ensemble_job.options, options
        valid = callee.validated.find(prepared.kind) if not options.parameters else None
        if valid is None:
            request = CallRequest(ensemble_job.id, options, owner.parameters, inputs, regions, self.trace)
            job = request.make_job(callee, slots, respond)
        else:
            rows, signature = valid
            job = Job(ensemble_job.id, options, inputs, rows, signature, slots, respond, arrived_ns, self.trace)
            job.regions, job.is_call = regions, True
        job.priority = ensemble_job.priority
        if regions and ensemble_job.client is not None and any(isinstance(region, ClientRegion) for region in regions):
            job.places = {}  # the inputs are a client's, the outputs are not
        elif callee.on_gpus is not None:
            job.places = owner.places_on_gpu(step)
        self.times = job.trace = StepTimes()
        return job

    def _prepare(self, callee: Callee) -> Prepared:
        """The inputs of the step, as they are now."""
        step, known = self.step, self.iteration.tensors
        inputs: list[TensorRef] = []
        contents: list[Contents] = []
        regions: list[GrantedRegion] = []
        kind: list[Hashable] = [step.requested_names]
        is_inline = self._nbytes() <= INLINE_BYTES_MAX
        for name, ensemble_name in step.inputs:
            source = known[ensemble_name]
            if source is None:
                continue
            tensor = source.tensors[ensemble_name]
            if source.copies is not None:
                tensor = source.tensor(ensemble_name, reads_of(callee.on_gpus).get(name))
            datatype, shape, data, at = tensor.datatype, tensor.shape, tensor.data, tensor.address
            size = len(data) if tensor.place is None else tensor.place.byte_size
            if step.is_batching != (source.batch > 0):
                shape = fitting(shape, source.batch, step.dims[name], is_batching=step.is_batching)
            if is_inline:
                contents.append((name, datatype, shape, data, size))
            elif type(tensor.place) is OnGpu:
                memory = tensor.place.memory
                inputs.append((name, datatype, shape, at, size, MEMORY_GPU, memory.gpu.ordinal))
                if memory not in regions:
                    regions.append(memory)
            elif not at:
                inputs.append((name, datatype, shape, bytes(data), size, MEMORY_CPU, 0))
            else:
                inputs.append((name, datatype, shape, at, size, MEMORY_CPU, 0))
                region = source.region_of(tensor)
                if region not in regions:
                    regions.append(region)
            # As in CallRequest.make_job.
            kind += (name, datatype, size)
            kind += shape
        return Prepared(inputs, contents, regions, tuple(kind))

    def _nbytes(self) -> int:
        """The size of all inputs, in bytes: more than INLINE_BYTES_MAX if the host cannot read them."""
        known, nbytes = self.iteration.tensors, 0
        for name in self.step.reads:
            source = known[name]
            if source is not None:
                tensor = source.tensors[name]
                nbytes += len(tensor.data) if tensor.place is None else INLINE_BYTES_MAX + 1
        return nbytes

    def _mark(self) -> SequenceMark | None:
        """The mark of the inputs, if one of the steps before has set one."""
        step, known, mark = self.step, self.iteration.tensors, None
        for name in step.reads:
            source = known[name]
            if source is not None and source.mark is not None:
                if mark is not None and mark != source.mark:
                    _LOG.error("Different set of response parameters are set for '%s'; the first is used", step.model)
                mark = mark or source.mark
        return mark

    def _respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        self._owner.responded(self, outcome, final)

    def end(self) -> None:
        """The step has ended. Breaks its reference cycles, because the collector costs more than counting."""
        self.job = None
        del self._request, self._slots, self._on_response

    def free(self) -> None:
        """See ModelCall, and Slot."""
        end_reads(self.step, self.iteration.tensors)
