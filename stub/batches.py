# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Executes batches: calls the model, sends the responses, and tracks inputs that the model keeps.

A thread answers its batch before it takes the next one. After the death of a stub the host relies on this to decide
which batches were running and which had not begun.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
import traceback
from typing import Any, Dict, Iterable, List, NoReturn, Optional, Set

import msgpack

from pyruntime.stub import gpus, plain
from pyruntime.stub.client_memory import ClientOutputs
from pyruntime.stub.coroutines import Coroutines
from pyruntime.stub.execute_result import WrongResponses, check_responses
from pyruntime.stub.gpus import settle
from pyruntime.stub.input_lifetime import KeptInputs
from pyruntime.stub.link import Link
from pyruntime.stub.loader import describe, log_failure, trace
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.functions import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.responses import ResponseWriter
from pyruntime.stub.server import Server
from pyruntime.stub.streams import LET_GO, RETURNED_NONE
from pyruntime.utils.errors import LocalError, PyruntimeError
from pyruntime.utils.messages import RESCHEDULED, SENDER, TAGS, Failed, Infer, Result, Retired, WireOutcome

_RESULT = TAGS[Result]


class Batches:
    """Executes the batches of a model. `execute` may run in several threads at once, if the model has several."""

    def __init__(
        self,
        link: Link,
        writer: ResponseWriter,
        region: Any,
        name: str,
        root: str,
        outputs: Set[str],
        decoupled: bool,
    ) -> None:
        self.forked = False
        # What a signal handler of the model has raised between two batches.
        self.interruption: Optional[BaseException] = None
        self.server: Server
        self._link = link
        self._writer = writer
        self._write = plain.response_writer(writer)
        self._region = region
        # Set before the first batch; initialize may make calls before that.
        self.model: Any = None
        self._name = name
        self._root = root
        self._outputs = outputs
        self._decoupled = decoupled
        self._kept = KeptInputs(plain.still_held)
        self._lock = threading.RLock()
        self._running: Dict[int, int] = {}
        # When execute was called for the batches that the host has no answer to.
        self._started: Dict[int, int] = {}

    def waiting_batch(self) -> int:
        """The batch that waits if this thread waits, 0 if there is none.

        A thread that the model created itself has no batch. Execute most likely waits for it, so its batch is that of
        execute, unless the model is decoupled.
        """
        running = self._running
        batch = running.get(threading.get_ident(), 0)
        if not batch and not self._decoupled and len(running) == 1:
            batch = next(iter(running.values()), 0)
        return batch

    def is_running(self, batches: Iterable[int]) -> bool:
        """Whether execute is still running for one of these batches."""
        return not set(batches).isdisjoint(list(self._running.values()))

    def started_ns(self, serial: int) -> int:
        """When execute was called for a request, 0 if the answer of its batch has told the host."""
        started = list(self._started.items())  # any thread asks
        return max((each for each in started if each[0] <= serial), default=(0, 0))[1]

    def execute(self, message: Infer, coroutines: Coroutines) -> None:
        """Execute one batch and answer it."""
        batch = message.batch
        requests = plain.make_requests(message.requests, self._region, self._outputs, batch)
        ident = threading.get_ident()
        self._running[ident] = batch
        responses: Any = None
        outcomes: Optional[bytes] = None
        failure = ""
        end_ns = 0
        self._started[batch] = start_ns = time.monotonic_ns()
        try:
            if self.interruption is not None:
                self._raise_interruption()
            responses = self.model.execute(requests)
            if type(responses) is not list and inspect.iscoroutine(responses):
                if self._decoupled and coroutines.reads:
                    coroutines.run_in_background(self._finish(responses, requests))
                    responses = None
                else:
                    responses = coroutines.run(responses)
            if self.forked:
                end_fork()  # only its parent may answer the batch
            end_ns = time.monotonic_ns()
            if self._decoupled:
                self._check_decoupled(responses)
            else:
                outcomes = self._write(responses, requests)
                if outcomes is None:
                    check_responses(responses, requests)
        except BaseException as exc:
            if self.forked:
                end_fork(exc)
            end_ns = end_ns or time.monotonic_ns()
            failure = self._failure(exc)
            traceback.clear_frames(exc.__traceback__)  # a coroutine's future and its traceback keep each other
        del self._running[ident]
        # From here on no traceback or response of ours refers to the requests, only the model may.
        if failure:
            responses = None
            self._end_all(requests)
        elif outcomes is not None:
            responses = None
        else:
            loss = LET_GO
            if responses is None:
                responses = [None] * len(requests)
                if not self._decoupled:
                    loss = RETURNED_NONE
            wires = []
            for response, request in zip(responses, requests):
                wires.append(self._answer(response, request, loss))
            responses = response = request = None  # type: ignore[assignment]
        if gpus.unsettled:
            settle()
        held = self._kept.find(batch, requests)  # from here: it counts references to the list
        for serial in held:
            _keep(requests[serial - batch])
        retained = [serial - batch for serial in held] if held else []
        if failure:
            self._link.send(Failed(batch, failure, retained, start_ns, end_ns))
        elif outcomes is not None:
            self._send_outcomes(outcomes, requests, (batch, retained, start_ns, end_ns))
        else:
            # As Result(...) does, which costs a call.
            self._send(tuple.__new__(Result, (batch, wires, retained, start_ns, end_ns)), requests)
        del self._started[batch]
        del requests
        if held:
            with self._lock:  # only now: `retire` must not report a request before the host knows that it is kept
                self._kept.watch(held)
        if self._kept.watched:
            self.retire()

    def _raise_interruption(self) -> None:
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            raise interruption

    def retire(self) -> None:
        """Tell the host which kept requests the model has released."""
        with self._lock:
            gone = self._kept.released() if self._kept.watched else []
        if gone and gpus.unsettled:
            settle()
        if gone and not self._link.closed:
            with contextlib.suppress(LocalError):  # the stub has just sent Stopped; the host frees everything then
                self._link.send(Retired(gone))

    def _end_all(self, requests: List[InferenceRequest]) -> None:
        for request in requests:
            self._end(request)

    def _fail_all(self, requests: List[InferenceRequest], failure: str) -> None:
        for request in requests:
            if request._stream is not None:
                request._stream.fail(failure)

    def _end(self, request: InferenceRequest) -> bool:
        """Close the senders of a request. False if one of them has answered it already."""
        if not request._end():
            return False
        if request._stream is not None:
            self.server.ended(request._serial)
        return True

    def _answer(self, response: Any, request: InferenceRequest, loss: str) -> WireOutcome:
        """The element of a Result for one request. `loss`: see Stream.begin, if there is no sender of it."""
        if response is not None:
            if self._end(request):
                return self._writer.write(response, request._outputs)
            LOGGER.warning("execute returned a response to a request that its sender had answered; it is dropped")
            return SENDER
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE and self._end(request):
            return RESCHEDULED
        # Code that still has the request can get a sender of it. If there is none, the stream ends at once.
        loss = loss if request._stream is None else LET_GO
        request._get_stream(self.server).begin(loss)
        return SENDER

    def _send_outcomes(self, outcomes: bytes, requests: List[InferenceRequest], rest: Any) -> None:
        """Send a result whose outcomes native code has written. `rest` are the other fields."""
        batch, retained, start_ns, end_ns = rest
        frame = plain.result(_RESULT, batch, outcomes, retained, start_ns, end_ns)
        try:
            self._link.send_frame(Result, frame)
        except PyruntimeError:
            wires: List[WireOutcome] = [tuple(each) for each in msgpack.unpackb(outcomes)]
            self._send(Result(batch, wires, retained, start_ns, end_ns), requests)

    def _send(self, result: Result, requests: List[InferenceRequest]) -> None:
        try:
            self._link.send(result)
        except PyruntimeError as exc:  # the result has more text than fits into a frame
            for each in result.responses:
                if isinstance(each, tuple):
                    self._writer.drop(each)
            self._end_all(requests)
            text = f"Failed to process the request(s) for model '{self._name}', message: {exc}"
            self._link.send(Failed(result.batch, text, result.retained, result.start_ns, result.end_ns))

    def _check_decoupled(self, responses: Any) -> None:
        if responses is not None:
            raise WrongResponses(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )

    async def _finish(self, coroutine: Any, requests: List[InferenceRequest]) -> None:
        """Run the rest of an execute that has returned from the host's point of view."""
        try:
            self._check_decoupled(await coroutine)
        except BaseException as exc:
            if self.forked:
                end_fork(exc)
            failure = self._failure(exc)
            traceback.clear_frames(exc.__traceback__)
            self._fail_all(requests, failure)
        requests.clear()
        self.retire()

    def _failure(self, exc: BaseException) -> str:
        """Log an exception of execute with its traceback, and return the message for clients."""
        if isinstance(exc, WrongResponses):
            cause = str(exc)
            LOGGER.error("execute failed: %s", cause)
        else:
            log_failure("execute failed", exc, self._root)
            cause = describe(exc, self._root)
        return f"Failed to process the request(s) for model '{self._name}', message: {cause}"


def end_fork(exc: Optional[BaseException] = None) -> NoReturn:
    """End a process that the model has forked and whose code has come to its end, by an exception or without.

    Its status is that of a Python program. Otherwise it ends as a process of `multiprocessing` does: exit handlers,
    temporary folders and event loops are its parent's.
    """
    code = 0
    try:
        if isinstance(exc, SystemExit) and (exc.code is None or isinstance(exc.code, int)):
            code = exc.code or 0
        elif exc is not None:
            code = 1
            print(exc.code if isinstance(exc, SystemExit) else trace(exc), file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


def _keep(request: InferenceRequest) -> None:
    """Copy inputs in client memory, which the client may change after the response, because the model keeps them."""
    outputs = request._outputs
    if type(outputs) is ClientOutputs:
        outputs.memory.keep()
