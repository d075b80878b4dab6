# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One request to an ensemble, from its job to its last response: performs what the policy decides (see run.py).

A step that fails, fails the request: no further step is started, and the error is sent when all steps under way have
ended, as in Triton. To cancel the request is to cancel these steps.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pyruntime.runtime.calls.model_call import Callee, CallTracer
from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.ensembles.credits import StepCredits
from pyruntime.runtime.ensembles.graph import OUTPUTS, Graph, Step, fitting
from pyruntime.runtime.ensembles.run import Command, Drop, Run, Send, Start
from pyruntime.runtime.ensembles.step_call import StepCall, StepRequest
from pyruntime.runtime.ensembles.tensors import SequenceMark, Source, StepOutputs, Tensor, read_inputs
from pyruntime.runtime.ensembles.times import STEP_TIMES, StepTime, encode_step_times
from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.executor import CallBack
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.native.memory import put_in_place
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.regions import GrantedRegion, SharedRegion
from pyruntime.runtime.requests.parameters import parse_parameters
from pyruntime.runtime.requests.types import InferResponse, OutputTensor, Parameter, request_failure
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import SEQUENCE_END, SEQUENCE_START, RequestOptions, TensorRef

_LOG = logging.getLogger("pyruntime.ensembles")

_NO_PARAMETERS: dict[str, Parameter] = {}
_NOTHING_TO_SEND = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


class StepModel(Callee, Protocol):
    """A version of the model of a step: see inference/model_version.py."""

    @property
    def is_ready(self) -> bool: ...

    def expect(self) -> None: ...

    def arrived(self) -> None: ...

    def check_ready(self, call_back: CallBack) -> None: ...


class Ensemble:
    """What the requests of one version share. `credits` is None without `max_inflight_requests`.

    `copied_bytes` is how much of the tensors between steps was copied: outputs of C++ backends in the server.
    """

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        graph: Graph,
        memory: RequestMemory,
        statistics: ModelStatistics,
        find: Callable[[str, int], StepModel],
        tracer: CallTracer,
    ) -> None:
        """`find` returns the version that serves a model, and raises InferenceError."""
        ensemble = spec.ensemble
        assert ensemble is not None  # the loader looks
        self.spec = spec
        self.version = version
        self.graph = graph
        self.memory = memory
        self.statistics = statistics
        self.find = find
        self.tracer = tracer
        limit = ensemble.max_inflight_requests
        self.credits: StepCredits[WaitingStart] | None = StepCredits(limit) if limit else None
        self.copied_bytes = 0
        self.dims = {
            name: output.dims if output.reshape is None else output.reshape for name, output in spec.outputs.items()
        }

    def is_step_ready(self, step: Step) -> bool:
        """Whether the model of a step is ready."""
        try:
            return self.find(step.model, step.version).is_ready
        except InferenceError:
            return False

    def check_step_ready(self, step: Step, call_back: CallBack) -> None:
        """Call back, at once or later, with whether the model of a step says that it is ready."""
        try:
            model = self.find(step.model, step.version)
        except InferenceError:
            call_back(False)
        else:
            model.check_ready(call_back)


class WaitingStart:
    """A start that waits for a credit."""

    __slots__ = ("request", "start")

    def __init__(self, request: EnsembleRequest, start: Start[Tensor]) -> None:
        self.request = request
        self.start = start


class EnsembleRequest:
    """See the module. It is also the worker of its job (see execution/deadlock.py): it waits for its steps."""

    def __init__(self, ensemble: Ensemble, job: Job, on_end: Callable[[Job], None]) -> None:
        """`on_end` is called after the last response."""
        self._ensemble = ensemble
        self._job = job
        self._on_end = on_end
        self._plan = plan = ensemble.graph.plan(job.options.requested_outputs)
        self._run: Run[Tensor] = Run(plan)
        options = job.options
        self._mark: SequenceMark = options.correlation_id, options.flags
        self._parameters = parse_parameters(options.parameters) if options.parameters else _NO_PARAMETERS
        self._callees: dict[int, StepModel] = {}
        self._calls: dict[StepCall, None] = {}
        self._waiting: dict[WaitingStart, None] = {}
        # What holds back each response of a decoupled step, by the step and its iteration.
        self._paces: dict[tuple[int, int], Source] = {}
        self._commands: deque[Command[Tensor]] = deque()
        self._is_busy = self._is_over = False
        self._last: InferResponse | None = None
        self._failure: InferenceError | None = None
        self._times: list[StepTime] | None = [] if self._parameters.get(STEP_TIMES) is True else None
        self._begin_ns = time.monotonic_ns()
        self._input_ns = self._infer_ns = self._output_ns = 0

    @property
    def model_name(self) -> str:
        """See Waiting."""
        return self._ensemble.spec.name

    def waiting_calls(self) -> Sequence[tuple[Sequence[Waiting], str]]:
        """See Waiting."""
        return [call.servers() for call in self._calls if call.job is not None]

    def begin(self) -> None:
        """Start the first steps. The job is answered in any case."""
        ensemble, job = self._ensemble, self._job
        find = ensemble.find
        try:
            for index, step in self._plan.steps.items():
                self._callees[index] = find(step.model, step.version)
        except InferenceError as exc:
            self._callees.clear()
            self._failure = self._named(exc, None)
        pinned = dict.fromkeys(self._callees.values())
        for callee in pinned:
            callee.expect()
        if self._failure is not None:
            job.free()
            self._end()
            return
        batch = job.rows if ensemble.spec.max_batch_size > 0 else 0
        tensors = read_inputs(job, ensemble.memory, self._plan.uses, batch)
        self._commands.extend(self._run.begin({name: tensors.get(name) for name in ensemble.spec.inputs}))
        self._perform()

    def cancel(self) -> None:
        """Cancel the steps that are under way, and start no more. The job is answered when they have ended."""
        if self._job.cancelled or self._is_over:
            return
        self._job.cancelled = True
        self._fail(InferenceError("", Code.CANCELLED))
        for call in list(self._calls):
            call.cancel()
        self._perform()

    def give_up(self, failure: InferenceError) -> None:
        """Answer the job at once. Its steps are cancelled, and what they still send is dropped."""
        if self._is_over:
            return
        self._fail(failure)
        self._end()
        for call in list(self._calls):
            call.cancel()
        self._perform()

    def resume(self, waiting: WaitingStart) -> None:
        """A start that waited for a credit has it now."""
        del self._waiting[waiting]
        self._start(waiting.start)
        self._perform()

    # What the steps answer.

    def responded(self, call: StepCall, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See StepOwner."""
        is_added = False
        if isinstance(outcome, InferResponse):
            if self._run.is_stopped or (call.has_responded and not call.step.is_decoupled):
                outcome.release()
            else:
                call.has_responded = True
                try:
                    self._add(call, outcome, final)
                    is_added = True
                except InferenceError as exc:
                    outcome.release()
                    self._fail(self._named(exc, call.step))
        elif outcome is not None:
            self._fail(self._named(outcome, call.step))
        if final:
            if not is_added:
                self._run.ended()
            self._call_ended(call)
        self._perform()

    def _add(self, call: StepCall, response: InferResponse, final: bool) -> None:
        """Report the tensors of a response to the policy. Raises InferenceError; the response is not released then."""
        step, plan, ensemble = call.step, self._plan, self._ensemble
        mark = _marked(self._mark, response.parameters) if response.parameters else self._mark
        used = [(name, tensor) for name, tensor in step.outputs if tensor in plan.uses]
        read = frozenset(name for name, tensor in used if tensor in plan.readers)
        made = StepOutputs(response, self._callees[step.index].memory, read)
        ensemble.copied_bytes += made.copied_bytes
        uses = sum(plan.uses[tensor] for name, tensor in used if name in made.outputs)
        source = Source(uses + step.is_decoupled, made.free)
        if step.is_decoupled:
            self._paces[step.index, self._run.next_iteration(step)] = source
        tensors = {
            tensor: made.tensor(name, call.batch, source, mark) if name in made.outputs else None
            for name, tensor in used
        }
        self._commands.extend(self._run.responded(step, call.iteration, tensors, is_last=final))

    def _call_ended(self, call: StepCall) -> None:
        step = call.step
        del self._calls[call]
        if call.job is not None:
            times = call.ended()
            self._input_ns += times.input_ns
            self._infer_ns += times.infer_ns
            self._output_ns += times.output_ns
            if self._times is not None:
                version = self._callees[step.index].version
                self._times.append(StepTime.of(step.index, step.model, version, times, self._job.arrived_ns))
        self._release_pace(step.index, call.iteration)
        self._give_back(step)

    def _give_back(self, step: Step) -> None:
        """Give the credit of a step back, to the next start that waits for it."""
        credits = self._ensemble.credits
        waiting = None if credits is None else credits.give_back(step.index)
        if waiting is not None:
            waiting.request.resume(waiting)

    # What the policy decides.

    def _perform(self) -> None:
        """Perform the commands, and those that they lead to. A step may answer while it is being started."""
        if self._is_busy:
            return
        self._is_busy = True
        queue = self._commands
        while queue:
            command = queue.popleft()
            if isinstance(command, Start):
                self._start_or_wait(command)
            elif isinstance(command, Send):
                self._send(command)
            elif isinstance(command, Drop):
                command.tensor.source.end_use()
            else:
                self._release_pace(command.step.index, command.iteration)
        self._is_busy = False
        if not self._run.under_way and not self._is_over:
            self._end()

    def _start_or_wait(self, start: Start[Tensor]) -> None:
        credits = self._ensemble.credits
        if self._run.is_stopped:
            self._withdraw(start)
        elif credits is None:
            self._start(start)
        else:
            waiting = WaitingStart(self, start)
            if credits.take(start.step.index, waiting):
                self._start(start)
            else:
                self._waiting[waiting] = None

    def _start(self, start: Start[Tensor]) -> None:
        callee = self._callees[start.step.index]
        call = StepCall(self, self._ensemble.tracer, start, self._request(start))
        self._calls[call] = None
        try:
            call.start(callee)
        except InferenceError as exc:
            step = start.step
            _LOG.warning("Ensemble '%s' failed to schedule step %d: %s", self.model_name, step.index, exc.message)
            self.responded(call, exc, True)
            return
        if call in self._calls and call.job is not None and call.job.instance is None:
            call.refuse_deadlock(self.model_name, f"the request to model '{start.step.model}'")

    def _request(self, start: Start[Tensor]) -> StepRequest:
        step, job, tensors = start.step, self._job, start.tensors
        inputs: list[TensorRef] = []
        regions: dict[int, GrantedRegion] = {}
        marks: dict[SequenceMark, None] = {}
        for name, ensemble_name in step.inputs:
            tensor = tensors[ensemble_name]
            if tensor is None:
                continue
            shape = fitting(tensor.shape, tensor.batch, step.dims[name], is_batching=step.is_batching)
            inputs.append(tensor.as_input(name, shape))
            if tensor.region is not None:
                regions[tensor.region.number] = tensor.region
            if tensor.mark is not None:
                marks[tensor.mark] = None
        if len(marks) > 1:
            _LOG.error("Different set of response parameters are set for '%s'. The first one is used", step.model)
        sequence_id, flags = next(iter(marks), self._mark)
        outputs = [name for name, _ in step.outputs]
        options = RequestOptions(sequence_id, flags, job.options.timeout_us, outputs, job.options.parameters)
        return StepRequest(job, step, options, self._parameters, inputs, list(regions.values()))

    def _send(self, send: Send[Tensor]) -> None:
        """Send a response; the last one when everything else is done."""
        used = {name: tensor for name, tensor in send.outputs.items() if tensor is not None}
        sources = [tensor.source for tensor in used.values()]
        pace = self._paces.pop((self._plan.origins.get(OUTPUTS, OUTPUTS), send.iteration), None)
        if pace is not None:
            sources.append(pace)
        response = self._response(used, Release(sources, pace))
        job = self._job
        if job.client is not None:
            try:
                response = put_in_place(response, job.client)
            except InferenceError as exc:
                response.release()
                self._fail(self._named(exc, None))
                return
        if self._run.is_stopped:
            response.release()
        elif send.is_last or not self._ensemble.spec.decoupled:
            self._last = response
        else:
            self._note_first(send.iteration)
            job.respond(response, False)

    def _response(self, used: Mapping[str, Tensor], release: Release) -> InferResponse:
        spec, dims = self._ensemble.spec, self._ensemble.dims
        is_batching = spec.max_batch_size > 0
        outputs: list[OutputTensor] = []
        regions: dict[int, SharedRegion] = {}
        parameters: dict[str, Parameter] = {}
        for name, tensor in used.items():
            shape = fitting(tensor.shape, tensor.batch, dims[name], is_batching=is_batching)
            outputs.append(tensor.as_output(name, client_shape(spec, name, shape)))
            if isinstance(tensor.region, SharedRegion):
                regions[tensor.region.number] = tensor.region
            if tensor.mark is not None:
                sequence_id, flags = tensor.mark
                parameters["sequence_id"] = sequence_id
                parameters["sequence_start"] = bool(flags & SEQUENCE_START)
                parameters["sequence_end"] = bool(flags & SEQUENCE_END)
        if self._times is not None:
            parameters[STEP_TIMES] = encode_step_times(self._times)
            self._times.clear()
        return InferResponse(
            spec.name,
            self._ensemble.version,
            self._job.id,
            outputs,
            parameters,
            release.release,
            release.take,
            tuple(regions.values()),
        )

    def _note_first(self, iteration: int) -> None:
        if not iteration:
            self._ensemble.statistics.first_response(time.monotonic_ns() - self._job.arrived_ns)

    def _release_pace(self, step: int, iteration: int) -> None:
        """A decoupled step is done with an iteration: the one whose response it read may go on."""
        source = self._paces.pop((self._plan.origins.get(step, OUTPUTS), iteration), None)
        if source is not None:
            source.end_use()

    # The end.

    def _named(self, error: InferenceError, step: Step | None) -> InferenceError:
        """The error of a step as the client gets it: Triton's text, and the step where that does not name it."""
        message = error.message
        place = "" if step is None or step.model in message else f" (step {step.index}, model '{step.model}')"
        return InferenceError(f"in ensemble '{self.model_name}', {message}{place}", error.code)

    def _fail(self, failure: InferenceError) -> None:
        """Start and send nothing more. The first failure counts."""
        if self._failure is not None:
            return
        self._failure = failure
        self._commands.extend(self._run.stop())
        for waiting in list(self._waiting):
            assert self._ensemble.credits is not None  # it waits for one
            self._ensemble.credits.withdraw(waiting.start.step.index, waiting)
            self._withdraw(waiting.start)
        self._waiting.clear()
        for call in list(self._calls):
            if call.step.is_decoupled:  # it may go on for ever
                call.cancel()

    def _withdraw(self, start: Start[Tensor]) -> None:
        """A step is not started after all."""
        for tensor in start.tensors.values():
            if tensor is not None:
                tensor.source.end_use()
        self._run.ended()

    def _end(self) -> None:
        """Answer the job, and release everything."""
        self._is_over = True
        ensemble, job, last = self._ensemble, self._job, self._last
        self._commands.extend(self._run.stop())
        self._perform()
        paces, self._paces = self._paces, {}
        for source in paces.values():
            source.end_use()
        for callee in dict.fromkeys(self._callees.values()):
            callee.arrived()
        failure = self._failure
        if failure is None and last is None and not ensemble.spec.decoupled:
            failure = self._named(request_failure(job.id, _NOTHING_TO_SEND, Code.INVALID_ARG), None)
        if failure is not None and last is not None:
            last.release()
        self._count(failure)
        self._on_end(job)
        job.respond(last if failure is None else failure, True)

    def _count(self, failure: InferenceError | None) -> None:
        job, statistics = self._job, self._ensemble.statistics
        now_ns = time.monotonic_ns()
        total_ns = now_ns - job.arrived_ns
        times = self._input_ns, self._infer_ns, self._output_ns
        if job.trace is not None:
            job.trace.composed(self._begin_ns, *times)
        if failure is not None:
            statistics.failure(total_ns, FailureReason.CANCELED if job.cancelled else FailureReason.OTHER)
            return
        statistics.success(job.rows, self._begin_ns - job.arrived_ns, *times, total_ns)
        statistics.execution(job.rows, *times, time.time_ns() // 1_000_000)


class Release:
    """The `take` and `release` of one response of an ensemble."""

    __slots__ = ("_pace", "_sources")

    def __init__(self, sources: list[Source], pace: Source | None) -> None:
        """`pace` is the one of `sources` that ends when the response is taken."""
        self._sources = sources
        self._pace = pace

    def take(self) -> None:
        """See InferResponse."""
        pace, self._pace = self._pace, None
        if pace is not None:
            self._sources.remove(pace)
            pace.end_use()

    def release(self) -> None:
        """See InferResponse."""
        for source in self._sources:
            source.end_use()


def _marked(mark: SequenceMark, parameters: Mapping[str, Parameter]) -> SequenceMark:
    """The sequence of a request after a step's model has changed it by response parameters. Raises InferenceError."""
    sequence_id, flags = mark
    if "sequence_id" in parameters:
        given = parameters["sequence_id"]
        if isinstance(given, (bool, float)):
            raise InferenceError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
                Code.INVALID_ARG,
            )
        sequence_id = given
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        if name in parameters:
            is_set = parameters[name]
            if not isinstance(is_set, bool):
                raise InferenceError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL", Code.INVALID_ARG)
            flags = flags | flag if is_set else flags & ~flag
    return sequence_id, flags
