# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What native code asks of the server, and the requests that it makes to models.

Native threads wait for the answers. A request's inputs are copied into the memory of the model that it goes to before
it is answered that the request is taken; its responses are copied on native threads, and released after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyruntime.runtime.instances.deadlock import Waiting, explain_deadlock
from pyruntime.runtime.instances.model_server import Callee, ModelServer
from pyruntime.runtime.instances.native.request import NativeRequest
from pyruntime.runtime.instances.native.worker import NativeWorker, worker_of
from pyruntime.runtime.instances.stub.calls import CALLS_MAX
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK

# How long a request may queue behind the very Execute that made it, in seconds. A backend that does not wait for its
# requests has returned from Execute long before; one that does would never.
DEADLOCK_AFTER_S = 5.0

Outcome = InferResponse | InferenceError | None


class NativeCall(Protocol):
    """A call, as native/_triton.pyi has it."""

    @property
    def method(self) -> str: ...

    @property
    def arguments(self) -> tuple[Any, ...]: ...

    def answer(self, result: bool | int | bytes | None, /) -> None: ...

    def fail(self, code: int, message: str, /) -> None: ...

    def respond(
        self,
        final: bool,
        outputs: Sequence[tuple[str, str, Sequence[int], Any]] | None,
        parameters: dict[str, Any],
        failure: tuple[int, str] | None,
        model: str,
        version: int,
        done: Callable[[], object] | None,
        /,
    ) -> None: ...


class _OpenRequest:
    """A request of native code that has not had its last response."""

    __slots__ = ("_call", "_early", "_on_end", "callee", "job", "worker")

    def __init__(
        self, call: NativeCall, callee: Callee, worker: NativeWorker | None, on_end: Callable[[], None]
    ) -> None:
        self.callee = callee
        self.worker = worker
        self.job: Job
        self._call = call
        self._on_end = on_end
        # Responses from before it is known that the request is taken.
        self._early: list[tuple[Outcome, bool]] | None = []

    def servers(self) -> tuple[Sequence[Waiting], str]:
        """See native_worker.MadeCall."""
        running = self.job.instance
        workers = self.callee.workers if running is None else [running.worker_of(self.job)]
        return workers, self.callee.spec.name

    def taken(self) -> None:
        """The model has the request: say so, and what it has answered already."""
        self._call.answer(None)
        early, self._early = self._early, None
        for outcome, final in early or ():
            self.respond(outcome, final)

    def respond(self, outcome: Outcome, final: bool) -> None:
        """See scheduling.job.Respond."""
        if self._early is not None:
            self._early.append((outcome, final))
            return
        try:
            self._hand_over(outcome, final)
        except (BufferError, OverflowError, TypeError, ValueError) as exc:  # such as a number that no int64_t holds
            failure = InferenceError(f"a response of the model that was called cannot be handed over: {exc}")
            self._hand_over(failure, final)
        if final:
            self._on_end()

    def _hand_over(self, outcome: Outcome, final: bool) -> None:
        name, version = self.callee.spec.name, self.callee.version
        if isinstance(outcome, InferResponse):
            outputs = [(output.name, output.datatype, output.shape, output.data) for output in outcome.outputs]
            self._call.respond(final, outputs, outcome.parameters, None, name, version, outcome.release)
            return
        failure = None if outcome is None else (int(outcome.code), outcome.message)
        self._call.respond(final, None, {}, failure, name, version, None)


class NativeCalls:
    """See the module. All methods belong to the event loop's thread; `accept_calls` is the extension's."""

    def __init__(self, server: ModelServer, accept_calls: Callable[[bool], None]) -> None:
        self._server = server
        self._accept_calls = accept_calls
        self._open: dict[int, _OpenRequest] = {}
        accept_calls(True)

    def __len__(self) -> int:
        return len(self._open)

    def call(self, call: NativeCall) -> None:
        """Native code wants something. What it is answered is said at once, or when the server can say it."""
        try:
            match call.method, call.arguments:
                case "infer", arguments:
                    self._infer(call, NativeRequest(*arguments))
                case "cancel", (int() as number,):
                    self._cancel(number)
                case "InferenceRequestNew", (str() as name, int() as version, str() as loading):
                    self._find(call, name, version, loading)
                case "ServerLoadModel", (name, config, files, str() as loading):
                    self._ask(call, loading, "load_model", [name, config, files])
                case "ServerUnloadModel", (name, dependents, str() as loading):
                    self._ask(call, loading, "unload_model", [name, dependents])
                case method, arguments:
                    call.answer(self._server.query(method, arguments))
        except InferenceError as exc:
            call.fail(int(exc.code), exc.message)

    def close(self) -> None:
        """The server stops: nobody is answered any more."""
        self._accept_calls(False)
        for request in list(self._open.values()):
            request.callee.cancel(request.job)

    def _find(self, call: NativeCall, name: str, version: int, loading: str) -> None:
        """Answer whether there is a model to make a request to; wait for one that loads if the caller does, too."""

        def found(callee: Callee | Exception) -> None:
            try:
                if isinstance(callee, InferenceError) and callee.code is not Code.NOT_FOUND:
                    raise callee
                self._server.find(name, version)
            except InferenceError as exc:
                call.fail(int(exc.code), exc.message)
            else:
                call.answer(None)

        if loading:
            self._server.when_ready(name, version, loading, found)
        else:
            found(self._server.find(name, version))

    def _ask(self, call: NativeCall, loading: str, method: str, arguments: list[Any]) -> None:
        def reply(code: int, result: Any) -> None:
            if code == OK:
                call.answer(None)
            else:
                call.fail(code, result)

        self._server.ask(self, loading, method, arguments, reply)

    # Requests.

    def _infer(self, call: NativeCall, request: NativeRequest) -> None:
        """Have a model execute a request. Raises InferenceError if it will not; the request is its maker's then."""
        if len(self._open) >= CALLS_MAX:
            raise InferenceError(f"more than {CALLS_MAX} calls are under way", Code.UNAVAILABLE)
        number = request.number
        callee = self._server.find(request.model, request.version)
        worker = worker_of(request.caller)
        if worker is not None:
            worker.expect()
        made = _OpenRequest(call, callee, worker, lambda: self._ended(number))
        made.job = job = callee.accept(request.infer_request(callee.spec), made.respond)
        if request.trace:
            self._server.trace_call(callee, job, request.trace)
        self._open[number] = made
        if worker is not None:
            worker.made(made)
        try:
            callee.start(job)
        except InferenceError:
            self._ended(number)
            raise
        if worker is not None and job.instance is None and self._cycle(made):
            asyncio.get_running_loop().call_later(DEADLOCK_AFTER_S, self._review, number)
        made.taken()

    def _ended(self, number: int) -> None:
        made = self._open.pop(number)
        if made.worker is not None:
            made.worker.ended(made)

    def _cancel(self, number: int) -> None:
        made = self._open.get(number)
        if made is not None:
            made.callee.cancel(made.job)

    def _cycle(self, made: _OpenRequest) -> str:
        assert made.worker is not None  # or it is nobody who waits
        return explain_deadlock(made.worker.model_name, made.callee.spec.name, made.callee.workers)

    def _review(self, number: int) -> None:
        """Refuse a request that can never be served, if it is still waited for."""
        made = self._open.get(number)
        if made is None or made.worker is None or made.job.instance is not None or not made.worker.is_waiting(made):
            return
        cycle = self._cycle(made)
        if not cycle:
            return
        refusal = InferenceError(
            f"the request would wait for ever, because every instance that could serve it waits for this one: {cycle}. "
            "Give one of these models more instances",
            Code.UNAVAILABLE,
        )
        job = made.job
        job.respond = lambda outcome, final: made.respond(refusal, True)
        if job.trace is not None:
            job.respond = job.trace.answering(job.respond)
        made.callee.cancel(job)
