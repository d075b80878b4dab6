# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of native code to the server, among them requests to models.

Native threads wait for the answers. The inputs of a request are copied into the callee's memory before native code is
told that the request is taken; native threads copy the responses, which are then released.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyruntime.runtime.calls.model_call import CALLS_MAX, Callee, ModelCall, too_many_calls
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.native.request import NativeRequest
from pyruntime.runtime.instances.native.worker import NativeWorker, worker_of
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

Outcome = InferResponse | InferenceError | None


class _OpenRequest(ModelCall):
    """A request of native code without its last response. `worker` is the thread that made it, if known."""

    __slots__ = ("_call", "_early", "_on_end", "worker")

    def __init__(
        self,
        server: ModelServer,
        call: _triton.Call,
        request: NativeRequest,
        worker: NativeWorker | None,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(server, request, [], self._respond)
        self.worker = worker
        self._call = call
        self._on_end = on_end
        # Responses that arrive before native code is told that the request is taken.
        self._early: list[tuple[Outcome, bool]] | None = []

    def is_waited_for(self) -> bool:
        """Whether the batch that made the request may still wait for it."""
        return self.worker is not None and self.worker.is_waiting(self)

    def taken(self) -> None:
        """Tell native code that the model has the request, and pass on the responses so far."""
        self._call.answer(None)
        early, self._early = self._early, None
        for outcome, final in early or ():
            self._respond(outcome, final)

    def _respond(self, outcome: Outcome, final: bool) -> None:
        """See execution.job.Respond."""
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
        assert self.callee is not None  # it has answered
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

    def call(self, call: _triton.Call) -> None:
        """Handle a call of native code. It is answered at once, or as soon as the server knows the answer."""
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
        """The server stops: fail and cancel all calls."""
        self._accept_calls(False)
        for request in list(self._open.values()):
            request.cancel()

    def _find(self, call: _triton.Call, name: str, version: int, loading: str) -> None:
        """Answer whether a model can be called. While the caller loads itself, wait for a model that loads, too."""

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

    def _ask(self, call: _triton.Call, loading: str, method: str, arguments: list[object]) -> None:
        def reply(code: int, result: object) -> None:
            if code == OK:
                call.answer(None)
            else:
                call.fail(code, str(result))

        self._server.ask(self, loading, method, arguments, reply)

    # Requests.

    def _infer(self, call: _triton.Call, request: NativeRequest) -> None:
        """Have a model execute a request. Raises InferenceError if it refuses; native code keeps the request then."""
        if len(self._open) >= CALLS_MAX:
            raise too_many_calls()
        number = request.number
        callee = self._server.find(request.model, request.version)
        worker = worker_of(request.caller)
        made = _OpenRequest(self._server, call, request, worker, partial(self._ended, number))
        self._open[number] = made
        if worker is not None:
            worker.expect()
        try:
            made.start(callee)
        except InferenceError:
            self._ended(number)
            raise
        if worker is not None:
            worker.made(made)
            made.refuse_deadlock_later(worker.model_name, "the request", made.is_waited_for)
        made.taken()

    def _ended(self, number: int) -> None:
        made = self._open.pop(number)
        if made.worker is not None:
            made.worker.ended(made)

    def _cancel(self, number: int) -> None:
        made = self._open.get(number)
        if made is not None:
            made.cancel()
