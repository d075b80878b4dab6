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
from collections.abc import Callable, Sequence
from functools import partial

from pyruntime.runtime.calls.guarded import start_guarded
from pyruntime.runtime.ensembles.ensemble import Ensemble, StepModel
from pyruntime.runtime.ensembles.gpu_copies import bring, lie_elsewhere
from pyruntime.runtime.ensembles.gpu_places import places_of_step
from pyruntime.runtime.ensembles.graph import OUTPUTS, Step
from pyruntime.runtime.ensembles.marks import SequenceMark, changed_mark
from pyruntime.runtime.ensembles.responses import make_response
from pyruntime.runtime.ensembles.run import Command, Drop, Run, Send, Start
from pyruntime.runtime.ensembles.step_call import StepCall
from pyruntime.runtime.ensembles.step_times import STEP_TIMES, StepTime
from pyruntime.runtime.ensembles.tensors import (
    Source,
    end_reads,
    read_inputs,
    read_outputs,
    with_shared,
)
from pyruntime.runtime.ensembles.times import StepTimes
from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.gpus.tensor_places import reads_of
from pyruntime.runtime.memory.client_outputs import put_in_place
from pyruntime.runtime.observe.statistics import FailureReason
from pyruntime.runtime.requests.parameters import request_parameters
from pyruntime.runtime.requests.types import InferResponse, KeptOutputs, Parameter, request_failure
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import OutputPlaceRef

_LOG = logging.getLogger("pyruntime.ensembles")

_NO_PARAMETERS: dict[str, Parameter] = {}
_NOTHING_TO_SEND = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


class WaitingStart:
    """A start that waits for a credit."""

    __slots__ = ("request", "start")

    def __init__(self, request: EnsembleRequest, start: Start[Source]) -> None:
        self.request = request
        self.start = start


class EnsembleRequest:
    """See the module, and StepOwner. It is also the worker of its job (see execution/deadlock.py): it waits for its
    steps.
    """

    __slots__ = (
        "_begin_ns",
        "_callees",
        "_calls",
        "_commands",
        "_ensemble",
        "_failure",
        "_infer_ns",
        "_input_ns",
        "_is_busy",
        "_is_over",
        "_last",
        "_on_end",
        "_output_ns",
        "_paces",
        "_plan",
        "_run",
        "_times",
        "_uses_gpus",
        "_waiting",
        "job",
        "mark",
        "parameters",
    )

    def __init__(self, ensemble: Ensemble[WaitingStart], job: Job, on_end: Callable[[Job], None]) -> None:
        """`on_end` is called just before the last response."""
        options = job.options
        self._ensemble = ensemble
        self.job = job
        self._on_end = on_end
        self._plan = plan = ensemble.graph.plan(options.requested_outputs)
        self._run: Run[Source] = Run(plan)
        self.mark: SequenceMark = options.correlation_id, options.flags
        self.parameters = request_parameters(options.parameters) if options.parameters else _NO_PARAMETERS
        self._callees: dict[int, StepModel] = {}
        self._calls: dict[StepCall, None] = {}
        self._waiting: dict[WaitingStart, None] = {}
        # What lets a decoupled step go on after a response, by the step and the iteration.
        self._paces: dict[tuple[int, int], Source] = {}
        self._commands: deque[Command[Source]] = deque()
        # Whether tensors lie on GPUs, or may do so.
        self._uses_gpus = False
        self._is_busy = self._is_over = False
        self._last: InferResponse | None = None
        self._failure: InferenceError | None = None
        self._times: list[StepTime] | None = [] if self.parameters.get(STEP_TIMES) is True else None
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
        ensemble, job, plan = self._ensemble, self.job, self._plan
        find = ensemble.find
        try:
            for index, step in plan.steps.items():
                self._callees[index] = find(step.model, step.version)
        except InferenceError as exc:
            self._callees.clear()
            self._failure = self._named(exc, None)
            job.free()
            self._end()
            return
        for callee in self._callees.values():
            callee.expect()
        tensors, self._uses_gpus = read_inputs(job, ensemble.memory, plan, job.rows if ensemble.is_batching else 0)
        self._commands.extend(self._run.begin(tensors))
        self._perform()

    def cancel(self) -> None:
        """Cancel the steps that are under way, and start no more. The job is answered when they have ended."""
        if self.job.cancelled or self._is_over:
            return
        self.job.cancelled = True
        self._fail(InferenceError("", Code.CANCELLED))
        for call in list(self._calls):
            call.cancel()
        self._perform()

    def give_up(self, failure: InferenceError) -> None:
        """Answer the job at once. Its steps are cancelled, and what they still send is dropped."""
        if self._is_over:
            return
        self._fail(failure)
        if not self._is_over:  # steps that end as soon as they are cancelled may have ended it
            self._end()
        for call in list(self._calls):
            call.cancel()
        self._perform()

    def resume(self, waiting: WaitingStart) -> None:
        """A start that waited for a credit has it now."""
        del self._waiting[waiting]
        self._start(waiting.start, has_credit=True)
        self._perform()

    # What the steps answer.

    def places_on_gpu(self, step: Step) -> dict[str, OutputPlaceRef] | None:
        """See StepOwner."""
        models = {index: callee.on_gpus for index, callee in self._callees.items()}
        places = places_of_step(step, self._plan, models, self.job.places, self._ensemble.peers.reaches)
        self._uses_gpus |= places is not None
        return places

    def responded(self, call: StepCall, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See StepOwner."""
        now_ns = time.monotonic_ns()
        is_reported = False
        if isinstance(outcome, InferResponse):
            if self._run.is_stopped or (call.has_responded and not call.step.is_decoupled):
                outcome.release()
            else:
                call.has_responded = True
                try:
                    self._add(call, outcome, final)
                    is_reported = True
                except InferenceError as exc:
                    outcome.release()
                    self._fail(self._named(exc, call.step))
        elif outcome is not None:
            self._fail(self._named(outcome, call.step))
        if final:
            if not is_reported:
                self._run.ended()
            del self._calls[call]
        if self._commands:
            self._start_all()  # before the rest, which can be done while their models work
        if final:
            if call.times is not None:
                self._add_times(call, call.times, now_ns)
            call.end()
            if call.step.is_decoupled:
                self._release_pace(call.step.index, call.iteration.number)
            if self._ensemble.credits is not None:
                waiting = self._ensemble.credits.give_back(call.step.index)
                if waiting is not None:
                    waiting.request.resume(waiting)
        if self._commands or not self._run.under_way:
            self._perform()

    def _add(self, call: StepCall, response: InferResponse, final: bool) -> None:
        """Report the tensors of a response to the policy. Raises InferenceError; the response is not released then."""
        step, plan = call.step, self._plan
        index, written = step.index, plan.written[step.index]
        mark = changed_mark(call.mark, response.parameters) if response.parameters else call.mark
        if type(response.outputs) is not KeptOutputs:  # which lie in a stub's region
            for output in response.outputs:
                if not output.address and output.name in written.shared:  # from a cache, for instance
                    response, copied_bytes = with_shared(response, written.shared, self._callees[index].memory)
                    self._ensemble.statistics.copied_bytes += copied_bytes
                    break
        batch = call.job.rows if step.is_batching and call.job is not None else 0
        source = Source(written.uses + step.is_decoupled, response.regions, response.release, batch, mark)
        if step.is_decoupled:
            self._paces[index, self._run.next_iteration(step)] = source
        tensors = read_outputs(response, source, step, plan)
        self._commands.extend(self._run.responded(step, call.iteration, tensors, is_last=final))

    def _add_times(self, call: StepCall, times: StepTimes, now_ns: int) -> None:
        """A step has ended, at `now_ns`."""
        times.ended(now_ns)
        self._input_ns += times.input_ns
        self._infer_ns += times.infer_ns
        self._output_ns += times.output_ns
        if self._times is not None:
            assert call.job is not None  # it has times
            step, version = call.step, self._callees[call.step.index].version
            arrived_ns, request_ns = call.job.arrived_ns, self.job.arrived_ns
            self._times.append(times.shown(step.index, step.model, version, arrived_ns, request_ns))

    # What the policy decides.

    def _start_all(self) -> None:
        """Start the steps that are to be started before anything else is done."""
        if self._is_busy:
            return
        self._is_busy = True
        queue = self._commands
        while queue and isinstance(command := queue[0], Start):
            del queue[0]
            self._start(command)
        self._is_busy = False

    def _perform(self) -> None:
        """Perform the commands, and those that they lead to. A step may answer while it is being started."""
        if self._is_busy:
            return
        self._is_busy = True
        queue = self._commands
        while queue:
            command = queue.popleft()
            if isinstance(command, Start):
                self._start(command)
            elif isinstance(command, Send):
                self._send(command)
            elif isinstance(command, Drop):
                command.tensor.end_use()
            else:
                self._release_pace(command.step.index, command.iteration.number)
        self._is_busy = False
        if not self._run.under_way and not self._is_over:
            self._end()

    def _start(self, start: Start[Source], *, has_credit: bool = False) -> None:
        """Call the model of a step, or wait for a credit."""
        ensemble, step = self._ensemble, start.step
        if self._run.is_stopped:
            self._withdraw(start)
            return
        if ensemble.credits is not None and not has_credit:
            waiting = WaitingStart(self, start)
            if not ensemble.credits.take(step.index, waiting):
                self._waiting[waiting] = None
                return
        call = StepCall(self, ensemble.tracer, start)
        self._calls[call] = None
        callee = self._callees[step.index]
        if self._uses_gpus and lie_elsewhere(step, start.iteration.tensors, reads_of(callee.on_gpus)):
            work, fail = partial(self._start_brought, call, callee), partial(self._not_started, call)
            start_guarded(ensemble.peers.tasks, work, fail, "copy inputs of a step")
            return
        try:
            call.start(callee)
        except InferenceError as exc:
            self._refused(call, exc)
            return
        if call.job is not None and call.job.instance is None and call in self._calls:
            call.refuse_deadlock(self.model_name, f"the request to model '{step.model}'")

    async def _start_brought(self, call: StepCall, callee: StepModel) -> None:
        """Call the model of a step whose inputs are to be copied before."""
        failure: InferenceError | None = None
        known, peers = call.iteration.tensors, self._ensemble.peers
        callee.expect()
        try:
            await bring(call.step, known, reads_of(callee.on_gpus), callee.memory, peers)
        except InferenceError as exc:
            failure = exc
        finally:
            callee.arrived()
        if failure is not None or self._run.is_stopped:
            call.free()
            self.responded(call, failure, True)
            return
        try:
            call.start(callee)
        except InferenceError as exc:
            self._refused(call, exc)
        if call in self._calls:
            call.refuse_deadlock(self.model_name, f"the request to model '{call.step.model}'")
        self._perform()

    def _not_started(self, call: StepCall, failure: InferenceError) -> None:
        """A bug has ended the start of a step."""
        self._is_busy = False
        if call not in self._calls:  # it has ended, and what follows it was to start
            self.give_up(failure)
            return
        if call.job is None:
            call.free()
        self.responded(call, failure, True)

    def _refused(self, call: StepCall, exc: InferenceError) -> None:
        """The model of a step did not take its request."""
        index = call.step.index
        _LOG.warning("Ensemble '%s' failed to schedule step %d: %s", self.model_name, index, exc.message)
        self.responded(call, exc, True)

    def _send(self, send: Send[Source]) -> None:
        """Send a response; the last one when everything else is done."""
        known, number = send.iteration.tensors, send.iteration.number
        pace = self._paces.pop((self._plan.origins[OUTPUTS], number), None) if self._paces else None
        response = make_response(self._ensemble, self._plan, self.job.id, known, pace, self._times)
        if self.job.client is not None:
            try:
                response = put_in_place(response, self.job.client)
            except InferenceError as exc:
                self._fail(self._named(exc, None))
        if self._run.is_stopped:
            response.release()
        elif send.is_last or not self._ensemble.spec.decoupled:
            self._last = response
        else:
            self.job.respond(response, False)

    def _release_pace(self, step: int, iteration: int) -> None:
        """A decoupled step is done with an iteration: the one whose response it read may go on."""
        source = self._paces.pop((self._plan.origins[step], iteration), None)
        if source is not None:
            source.end_use()

    def _release_paces(self) -> None:
        """Let all decoupled steps go on."""
        paces, self._paces = self._paces, {}
        for source in paces.values():
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
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            assert self._ensemble.credits is not None  # it waits for one
            self._ensemble.credits.withdraw(each.start.step.index, each)
            self._withdraw(each.start)
        self._release_paces()  # a decoupled step may wait for them, and must go on to end
        for call in list(self._calls):
            if call.step.is_decoupled:  # it may go on for ever
                call.cancel()

    def _withdraw(self, start: Start[Source]) -> None:
        """A step is not started after all."""
        end_reads(start.step, start.iteration.tensors)
        self._run.ended()

    def _end(self) -> None:
        """Answer the job, and release everything."""
        self._is_over = True
        ensemble, job, last = self._ensemble, self.job, self._last
        self._commands.extend(self._run.stop())
        if self._commands:
            self._perform()
        self._release_paces()
        failure = self._failure
        if failure is None and last is None and not ensemble.spec.decoupled:
            failure = self._named(request_failure(job.id, _NOTHING_TO_SEND, Code.INVALID_ARG), None)
        if failure is not None and last is not None:
            last.release()
        now_ns, times = time.monotonic_ns(), (self._input_ns, self._infer_ns, self._output_ns)
        if job.trace is not None:
            job.trace.composed(self._begin_ns, *times)
        self._on_end(job)
        job.respond(last if failure is None else failure, True)
        # Nobody waits for the rest.
        for callee in self._callees.values():
            callee.arrived()
        statistics, total_ns = ensemble.statistics, now_ns - job.arrived_ns
        if failure is not None:
            statistics.failure(total_ns, FailureReason.CANCELED if job.cancelled else FailureReason.OTHER)
            return
        statistics.success(job.rows, self._begin_ns - job.arrived_ns, *times, total_ns)
        statistics.execution(job.rows, *times, time.time_ns() // 1_000_000)
